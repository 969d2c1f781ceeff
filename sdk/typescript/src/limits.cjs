'use strict'
// Limits: check, consume, and reservations.
const { sha256 } = require('#platform')
const { MeterplexError, invalid } = require('./errors.cjs')
const { canonicalMetadata, checkFeature, idForm, newId, toAmount } = require('./event.cjs')
const { attempt, call } = require('./http.cjs')
const { timerMs } = require('./time.cjs')

/** @typedef {import('./client.cjs').Client} Client */

const COMMIT_SUFFIX = '-usage'

/** Cache holds the last answer of each feature, for checks that the service does not answer. */
class Cache {
  constructor () {
    /** @type {Map<string, {answer: any, at: number, spent: bigint}>} */
    this.entries = new Map()
  }

  /** @param {string} feature @param {any} answer */
  put (feature, answer) { this.entries.set(feature, { answer, at: Date.now(), spent: 0n }) }

  /** get returns an answer from the last one of a feature, undefined if that is too old or its limit does not hold the amount. @param {string} feature @param {bigint} amount @param {number} maxStaleMs */
  get (feature, amount, maxStaleMs) {
    const entry = this.entries.get(feature)
    if (!entry || Math.abs(Date.now() - entry.at) > maxStaleMs) return undefined
    const { answer } = entry
    if (answer.resetAt && Date.parse(answer.resetAt) <= Date.now()) return undefined
    if (typeof answer.remaining !== 'bigint' || answer.limitBehavior === 'SOFT') return { ...answer, source: 'cache' } // without a limit that denies, or not granted
    const remaining = answer.remaining - entry.spent
    if (amount > remaining) return undefined
    entry.spent += amount
    return { ...answer, allowed: true, reason: undefined, remaining, source: 'cache' }
  }
}

/** check: see index.d.ts. @param {Client} client @param {string} feature @param {any} [amount] @param {any} [options] */
async function check (client, feature, amount = 1n, { minPosition, wait, deadlineMs = client.options.checkMs + (wait ?? 0) * 1000, policy = client.options.policy, signal } = {}) {
  checkFeature(feature)
  const n = toAmount(amount, 0n)
  signal?.throwIfAborted()
  try {
    const answer = await attempt(client, { method: 'GET', path: `/entitlements/${feature}/check`, query: { amount: n, minPosition }, wait, signal }, deadlineMs)
    const body = answer.status === 200 && answer.isJSON ? answer.json() : undefined
    if (typeof body?.allowed === 'boolean') {
      client.cache.put(feature, body)
      return { ...body, source: 'service' }
    }
    const refusal = answer.refusal()
    if (refusal) throw refusal
  } catch (err) {
    if (err instanceof MeterplexError) throw err
    if (signal?.aborted) throw signal.reason
  }
  return client.cache.get(feature, n, client.options.maxStaleMs) ?? { allowed: policy === 'allow', feature, source: 'policy' }
}

/** @param {any} id @param {string} member @returns {string} */
function checkId (id, member) {
  if (typeof id !== 'string' || !idForm.test(id)) throw invalid(`${member} must have 1 to 255 printable ASCII characters without space`)
  return id
}

/** @param {Client} client @param {string} method @param {string} path @param {object | undefined} body @param {string} id @param {any} options */
function change (client, method, path, body, id, { deadlineMs = client.options.deadlineMs, signal }) {
  return call(client, { method, path: '/entitlements/' + path, body, id, deadlineMs, signal, isAnswer: (answer) => answer.reservationId === id || answer.eventId === id })
}

/** consume: see index.d.ts. @param {Client} client @param {string} feature @param {any} amount @param {any} [options] */
async function consume (client, feature, amount, options = {}) {
  checkFeature(feature)
  canonicalMetadata(options.metadata)
  const eventId = checkId(options.eventId ?? newId(), 'eventId')
  return change(client, 'POST', `${feature}/consume`, { eventId, amount: toAmount(amount), metadata: options.metadata }, eventId, options)
}

/** reserve: see index.d.ts. @param {Client} client @param {string} feature @param {any} amount @param {any} [options] */
async function reserve (client, feature, amount, options = {}) {
  checkFeature(feature)
  const reservationId = checkId(options.reservationId ?? newId(), 'reservationId')
  const hold = await change(client, 'POST', `${feature}/reservations`, { reservationId, amount: toAmount(amount), ttlSeconds: options.ttlSeconds }, reservationId, options)
  if (hold.state !== 'HELD') throw new MeterplexError('reservation_ended', `the reservation ${reservationId} is ${hold.state}: hold the amount under another id`, { id: reservationId, problem: hold })
  return hold
}

/** @param {string} feature @param {string} reservationId */
function reservationPath (feature, reservationId) {
  checkFeature(feature)
  return `${feature}/reservations/${encodeURIComponent(checkId(reservationId, 'reservationId'))}`
}

/** commit: see index.d.ts. @param {Client} client @param {string} feature @param {string} reservationId @param {any} amount @param {any} [options] */
async function commit (client, feature, reservationId, amount, options = {}) {
  const path = reservationPath(feature, reservationId) + '/commit'
  const eventId = checkId(options.eventId ?? commitId(reservationId), 'eventId')
  return change(client, 'POST', path, { eventId, amount: toAmount(amount), overage: options.overage }, reservationId, options)
}

/** commitId returns the same id for each commit of a reservation, so that a repeated commit is the same request. @param {string} reservationId */
function commitId (reservationId) {
  const id = reservationId + COMMIT_SUFFIX
  return id.length <= 255 ? id : sha256(reservationId).slice(0, 32) + COMMIT_SUFFIX
}

/** extend: see index.d.ts. @param {Client} client @param {string} feature @param {string} reservationId @param {number} ttlSeconds @param {any} [options] */
async function extend (client, feature, reservationId, ttlSeconds, options = {}) {
  return change(client, 'POST', reservationPath(feature, reservationId) + '/extend', { ttlSeconds }, reservationId, options)
}

/** release: see index.d.ts. @param {Client} client @param {string} feature @param {string} reservationId @param {any} [options] */
async function release (client, feature, reservationId, options = {}) {
  return change(client, 'DELETE', reservationPath(feature, reservationId), undefined, reservationId, options)
}

/** withReservation: see index.d.ts. @param {Client} client @param {string} feature @param {any} amount @param {(hold: any) => any} fn @param {any} [options] */
async function withReservation (client, feature, amount, fn, options = {}) {
  const { reservationId = newId(), ttlSeconds = 600 } = options
  const settle = { deadlineMs: options.deadlineMs } // also after an abort: the hold must end
  let hold
  try {
    hold = await reserve(client, feature, amount, { ...options, ttlSeconds, reservationId })
  } catch (err) {
    if (err instanceof MeterplexError && err.code === 'unknown_outcome') await release(client, feature, reservationId, settle).catch(() => {})
    throw err
  }
  let value, used
  try {
    const reported = await extended(client, feature, reservationId, ttlSeconds, () => fn(hold))
    ;({ amount: used, value } = typeof reported === 'object' && reported !== null ? reported : { amount: reported, value: undefined })
    used = toAmount(used, 0n)
  } catch (err) {
    await release(client, feature, reservationId, settle).catch((fault) => client.report(fault.code ?? 'unavailable', `release of the reservation ${reservationId}: ${fault.message}`))
    throw err
  }
  const settled = used === 0n ? await release(client, feature, reservationId, settle) : await commit(client, feature, reservationId, used, { overage: 'record', ...settle, eventId: options.eventId })
  return { settled, value }
}

/** extended calls fn, and extends a hold until it ends. @param {Client} client @param {string} feature @param {string} reservationId @param {number} ttlSeconds @param {() => any} fn */
async function extended (client, feature, reservationId, ttlSeconds, fn) {
  const ended = new AbortController()
  const again = () => { extend(client, feature, reservationId, ttlSeconds, { signal: ended.signal }).catch(() => {}) } // commit reports a hold that has ended
  const extending = setInterval(again, timerMs(ttlSeconds * 1000 / 3))
  extending.unref?.()
  try {
    return await fn()
  } finally {
    clearInterval(extending)
    ended.abort()
  }
}

module.exports = { Cache, check, consume, reserve, commit, extend, release, withReservation }
