'use strict'
const { sha256 } = require('#platform')
const { MeterplexError, invalid } = require('./errors.cjs')
const { formatTime, parseTime } = require('./time.cjs')

const MAX_AMOUNT = 9007199254740991n
const MAX_METADATA = 4096
const MAX_LEVELS = 5
const members = new Set(['eventId', 'feature', 'amount', 'timestamp', 'metadata', 'type', 'correctionRef'])
const idForm = /^[!-~]{1,255}$/
const featureForm = /^[a-z][a-z0-9_.-]{0,63}$/

/** @param {string} code @param {string} member @param {string} why @returns {never} */
function refuse (code, member, why) {
  const detail = `${member} ${why}`
  throw new MeterplexError(code, detail, { errors: [{ pointer: '/' + member, code, detail }] })
}

/**
 * prepare checks an event, fixes its id and its time, and returns it as it will be sent. The order of the faults is that of the service.
 * @param {any} event
 * @returns {{eventId: string, timestamp: string, text: string}}
 */
function prepare (event) {
  if (typeof event !== 'object' || event === null) throw new MeterplexError('event_invalid', 'an event is an object')
  for (const name of Object.keys(event)) if (!members.has(name)) refuse('unknown_member', name, 'is not a member of an event')
  const { type = 'usage', eventId = newId(), feature, metadata, correctionRef } = event
  if (type !== 'usage' && type !== 'correction' && type !== 'retraction') refuse('type_invalid', 'type', 'must be usage, correction or retraction')
  if (typeof eventId !== 'string' || !idForm.test(eventId)) refuse('event_id_invalid', 'eventId', 'must have 1 to 255 printable ASCII characters without space')
  checkFeature(feature)
  const amount = amountOf(event.amount, type)
  const time = parseTime(event.timestamp ?? new Date())
  if (!time) refuse('timestamp_invalid', 'timestamp', 'must be a Date or a time of RFC 3339 with an offset, e.g. 2026-05-01T12:00:00Z')
  const kept = canonicalMetadata(metadata)
  checkReference(type, correctionRef, eventId)
  const timestamp = formatTime(time)
  const text = '{' + (amount === undefined ? '' : `"amount":${amount},`) + (correctionRef === undefined ? '' : `"correctionRef":${JSON.stringify(correctionRef)},`) +
    `"eventId":${JSON.stringify(eventId)},"feature":"${feature}",` + (kept && `"metadata":${kept},`) + `"timestamp":"${timestamp}"` + (type === 'usage' ? '}' : `,"type":"${type}"}`)
  return { eventId, timestamp, text }
}

/** readEvent returns an event of a queue as the application knows it. No SDK writes one without an eventId: that is "" then. @param {string} text */
function readEvent (text) {
  try {
    const event = withAmount(JSON.parse(text))
    return typeof event.eventId === 'string' ? event : { ...event, eventId: '' }
  } catch {
    return { eventId: '' }
  }
}

/** withAmount gives an event its amount as a bigint. @param {any} event */
const withAmount = (event) => Number.isSafeInteger(event.amount) ? { ...event, amount: BigInt(event.amount) } : event

/** @param {unknown} feature */
function checkFeature (feature) {
  if (feature === undefined) refuse('member_missing', 'feature', 'is missing; it is required')
  if (typeof feature !== 'string' || !featureForm.test(feature)) refuse('feature_invalid', 'feature', `must match ${featureForm.source}`)
}

/** @param {unknown} amount @param {string} type */
function amountOf (amount, type) {
  if (type === 'retraction') {
    if (amount !== undefined) refuse('amount_invalid', 'amount', 'is not for retractions, which take back the whole amount')
    return undefined
  }
  if (amount === undefined) refuse('member_missing', 'amount', 'is missing; it is required')
  return toAmount(amount, type === 'correction' ? 0n : 1n)
}

/** toAmount returns an amount as a bigint; an error unless it is an integer from least to 2^53-1. @param {unknown} amount @param {bigint} [least] */
function toAmount (amount, least = 1n) {
  const n = typeof amount === 'bigint' ? amount : Number.isSafeInteger(amount) ? BigInt(/** @type {number} */ (amount)) : -1n
  if (n < least || n > MAX_AMOUNT) refuse('amount_invalid', 'amount', `must be a bigint or an integer from ${least} to ${MAX_AMOUNT}`)
  return n
}

/** @param {string} type @param {unknown} ref @param {string} eventId */
function checkReference (type, ref, eventId) {
  if (type === 'usage') {
    if (ref !== undefined) refuse('correction_ref_invalid', 'correctionRef', 'is for corrections and retractions only')
    return
  }
  if (ref === undefined) refuse('member_missing', 'correctionRef', 'is missing; it is required')
  if (typeof ref !== 'string' || !idForm.test(ref) || ref === eventId) refuse('correction_ref_invalid', 'correctionRef', 'must be the eventId of the usage to correct')
}

/** canonicalMetadata returns metadata as RFC 8785 writes it; "" if there is none. @param {any} metadata @returns {string} */
function canonicalMetadata (metadata) {
  if (metadata === undefined || metadata === null) return ''
  if (!isPlain(metadata)) refuse('metadata_invalid', 'metadata', 'must be an object')
  const text = canonical(metadata, 1)
  if (text.length > MAX_METADATA || utf8Length(text) > MAX_METADATA) refuse('metadata_too_large', 'metadata', `has more than ${MAX_METADATA} bytes in canonical form`)
  return text === '{}' ? '' : text
}

/** canonical writes a value as RFC 8785 does; members that are undefined are left out. @param {any} value @param {number} level @returns {string} */
function canonical (value, level) {
  if (value === null || typeof value === 'boolean') return String(value)
  if (typeof value === 'number') return Number.isFinite(value) ? String(value === 0 ? 0 : value) : inexact(value)
  if (typeof value === 'bigint') return isDouble(value) ? String(Number(value)) : inexact(value)
  if (typeof value === 'string') return quote(value)
  if (!Array.isArray(value) && !isPlain(value)) refuse('metadata_invalid', 'metadata', `holds a ${value?.constructor?.name ?? typeof value}, which JSON does not have; send a text`)
  if (level > MAX_LEVELS) refuse('metadata_invalid', 'metadata', `has more than ${MAX_LEVELS} levels of objects and arrays`)
  if (Array.isArray(value)) return '[' + Array.from(value, (one) => canonical(one, level + 1)).join() + ']'
  const names = Object.keys(value).filter((name) => value[name] !== undefined).sort() // by UTF-16 code units
  return '{' + names.map((name) => quote(name) + ':' + canonical(value[name], level + 1)).join() + '}'
}

/** @param {bigint} n */
const isDouble = (n) => Number.isFinite(Number(n)) && BigInt(Number(n)) === n
/** @param {number | bigint} n @returns {never} */
const inexact = (n) => refuse('metadata_invalid', 'metadata', `holds the number ${n}, which JSON does not keep exactly; send a text`)

/** @param {string} text */
function quote (text) {
  if (text.includes('\0') || /\p{Surrogate}/u.test(text)) refuse('metadata_invalid', 'metadata', 'holds U+0000 or half of a surrogate pair')
  return JSON.stringify(text)
}

/** @param {any} value */
function isPlain (value) {
  if (typeof value !== 'object' || value === null) return false
  const prototype = Object.getPrototypeOf(value)
  return prototype === null || Object.getPrototypeOf(prototype) === null // also objects of another realm
}

const encoder = new TextEncoder()
/** @param {string} text */
const utf8Length = (text) => encoder.encode(text).length

/** newId returns a random UUIDv7. */
function newId () {
  const bytes = crypto.getRandomValues(new Uint8Array(16))
  for (let i = 0, ms = Date.now(); i < 6; i++) bytes[i] = Math.floor(ms / 2 ** (8 * (5 - i)))
  bytes[6] = bytes[6] & 0x0f | 0x70
  bytes[8] = bytes[8] & 0x3f | 0x80
  const hex = Array.from(bytes, (b) => b.toString(16).padStart(2, '0')).join('')
  return [hex.slice(0, 8), hex.slice(8, 12), hex.slice(12, 16), hex.slice(16, 20), hex.slice(20)].join('-')
}

/** eventId: see index.d.ts. @param {string} tenant @param {string} feature @param {string} resource @param {Date | string} occurredAt */
function eventId (tenant, feature, resource, occurredAt) {
  for (const [name, part] of Object.entries({ tenant, feature, resource })) {
    if (typeof part !== 'string' || part === '' || part.includes('|')) throw invalid(`${name} is empty or contains "|": two events could get one id`)
  }
  const time = parseTime(occurredAt)
  if (!time) throw invalid('occurredAt must be a Date or a time of RFC 3339 with an offset')
  return sha256([tenant, feature, resource, formatTime(time, true)].join('|')).slice(0, 32)
}

/** amount: see index.d.ts. @param {string} decimal @param {string} unit @param {number} scale */
function amount (decimal, unit, scale) {
  const fail = (/** @type {string} */ why) => new MeterplexError('amount_invalid', `${JSON.stringify(decimal)} ${unit} ${why}`)
  if (!Number.isInteger(scale) || scale < 0 || scale > 100) throw fail('has no scale from 0 to 100')
  const parts = typeof decimal === 'string' ? /^([0-9]+)(?:\.([0-9]+))?$/.exec(decimal) : null
  if (!parts) throw fail('is no decimal text such as "12.34"')
  const fraction = (parts[2] ?? '').replace(/0+$/, '')
  if (fraction.length > scale) throw fail(`has more than ${scale} decimals: it is not exact at 10^-${scale} ${unit}`)
  const n = BigInt(parts[1] + fraction.padEnd(scale, '0'))
  if (n < 1n || n > MAX_AMOUNT) throw fail(`× 10^${scale} is not from 1 to ${MAX_AMOUNT}`)
  return n
}

module.exports = { prepare, readEvent, withAmount, toAmount, canonicalMetadata, checkFeature, newId, eventId, amount, idForm, utf8Length }
