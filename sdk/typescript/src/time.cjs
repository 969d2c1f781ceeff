'use strict'

const form = /^(\d{4})-(\d\d)-(\d\d)T(\d\d):(\d\d):(\d\d)(?:\.(\d{1,9}))?(?:Z|([+-])(\d\d):(\d\d))$/

/**
 * parseTime reads a time of RFC 3339 as the service does: upper-case T and Z, at most 9 digits of a second, no second 60, years 0001 to
 * 9999 in UTC. Digits behind microseconds are cut. undefined: it is no such time.
 * @param {unknown} value a text or a Date
 * @returns {{ms: number, micros: string} | undefined} whole seconds as ms since 1970, and 6 digits of the second
 */
function parseTime (value) {
  if (value instanceof Date) {
    if (Number.isNaN(value.getTime())) return undefined
    value = value.toISOString()
  }
  const parts = typeof value === 'string' ? form.exec(value) : null
  if (!parts) return undefined
  const [year, month, day, hour, minute, second] = parts.slice(1, 7).map(Number)
  const date = new Date(0)
  date.setUTCFullYear(year, month - 1, day) // unlike Date.UTC, it takes years below 100 as they are
  if (date.getUTCMonth() !== month - 1 || date.getUTCDate() !== day || hour > 23 || minute > 59 || second > 59) return undefined
  const [hours, minutes] = parts[8] ? [Number(parts[9]), Number(parts[10])] : [0, 0]
  if (hours > 23 || minutes > 59) return undefined
  const ms = date.getTime() + ((hour * 60 + minute) * 60 + second) * 1000 - (parts[8] === '-' ? -1 : 1) * (hours * 60 + minutes) * 60000
  const utcYear = new Date(ms).getUTCFullYear()
  if (utcYear < 1 || utcYear > 9999) return undefined
  return { ms, micros: (parts[7] ?? '').padEnd(6, '0').slice(0, 6) }
}

/**
 * formatTime writes a time in UTC with Z. Without all 6 digits of the second it leaves out zeros at the end.
 * @param {{ms: number, micros: string}} time
 * @param {boolean} [all]
 */
function formatTime (time, all) {
  const digits = all ? time.micros : time.micros.replace(/0+$/, '')
  return new Date(time.ms).toISOString().slice(0, 19) + (digits ? '.' + digits : '') + 'Z'
}

/** timerMs returns a wait that setTimeout takes: above 2^31-1 ms it would end at once. @param {number} ms */
const timerMs = (ms) => Math.min(ms, 2 ** 31 - 1)

module.exports = { parseTime, formatTime, timerMs }
