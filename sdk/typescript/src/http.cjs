'use strict'
// Requests of the application: one attempt, and attempts until a deadline.
const { request } = require('#platform')
const { MeterplexError } = require('./errors.cjs')
const { timerMs } = require('./time.cjs')

/** @typedef {import('./client.cjs').Client} Client */
/**
 * id: the request changes something, and is known by it. isAnswer: whether a body is the service's. wait: seconds that the service may wait for minPosition.
 * @typedef {{method: string, path: string, isAnswer: (body: any) => boolean, query?: Record<string, any>, body?: object, wait?: number, id?: string,
 *   deadlineMs: number, signal?: AbortSignal}} Call
 */

const FIRST_WAIT = 200
const LONGEST_WAIT = 5_000
/** No further attempt begins if less time is left. */
const LEAST_ATTEMPT = 20
const HOUR = 3_600_000

/** The members of answers that are amounts: the service writes them as texts, the SDK gives bigints. */
const amounts = new Set(['amount', 'limit', 'used', 'held', 'remaining', 'released', 'committed', 'before', 'after', 'delta', 'effectiveAmount'])
/** Members with the application's own content. */
const foreign = new Set(['payload', 'metadata', 'group'])

class Answer {
  /** @param {import('./node.cjs').RawAnswer} raw */
  constructor (raw) {
    this.status = raw.status
    this.headers = raw.headers
    this.text = raw.text
  }

  /** json returns the decoded body, undefined if it is no JSON. @returns {any} */
  json () {
    try {
      return decode(JSON.parse(this.text))
    } catch {
      return undefined
    }
  }

  get isJSON () { return /^application\/json\s*(;|$)/.test(this.headers['content-type'] ?? '') }

  /** problem returns the refusal of the service, undefined if the answer is another's. @returns {MeterplexError | undefined} */
  problem () {
    const body = /^application\/problem\+json/.test(this.headers['content-type'] ?? '') ? this.json() : undefined
    if (typeof body?.code !== 'string') return undefined
    return new MeterplexError(body.code, body.detail ?? body.title ?? '', { status: this.status, traceId: body.traceId, errors: body.errors, problem: body })
  }

  /** refusal returns the service's refusal if the same request gets it again. projection_behind: the service has waited as long as the caller asked. */
  refusal () {
    const problem = this.problem()
    return this.isTemporary && problem?.code !== 'projection_behind' ? undefined : problem
  }

  get isTemporary () { return this.status === 408 || this.status === 429 || this.status >= 500 }

  /** retryAfterMs returns the wait that the answer asks for, at most an hour. */
  retryAfterMs () {
    const text = this.headers['retry-after'] ?? ''
    const ms = /^\d+$/.test(text) ? Number(text) * 1000 : Date.parse(text) - Date.now()
    return ms > 0 ? Math.min(ms, HOUR) : 0 // also if it is no date
  }
}

/** decode turns the amounts of an answer into bigints. @param {any} value @returns {any} */
function decode (value) {
  if (Array.isArray(value)) return value.map(decode)
  if (typeof value !== 'object' || value === null) return value
  return Object.fromEntries(Object.entries(value).map(([name, one]) => [name,
    foreign.has(name) ? one : amounts.has(name) && typeof one === 'string' && /^-?\d+$/.test(one) ? BigInt(one) : decode(one)]))
}

/** attempt sends a request once. @param {Client} client @param {Omit<Call, 'isAnswer' | 'deadlineMs'>} call @param {number} timeoutMs */
async function attempt (client, { method, path, query = {}, body, wait, signal }, timeoutMs) {
  const pairs = Object.entries(query).flatMap(([name, value]) => value === undefined ? [] : [value].flat().map((one) => [name, one instanceof Date ? one.toISOString() : String(one)]))
  const search = pairs.length > 0 ? '?' + new URLSearchParams(pairs) : ''
  /** @type {Record<string, string>} */
  const headers = client.headers()
  if (body !== undefined) headers['content-type'] = 'application/json'
  if (wait !== undefined) headers.prefer = `wait=${Math.ceil(wait)}`
  const text = body === undefined ? undefined : JSON.stringify(body, (_, value) => typeof value === 'bigint' ? Number(value) : value)
  return new Answer(await request({ ...client.transport, url: client.address(path) + search, method, headers, body: text, timeoutMs, signal }))
}

/**
 * call sends a request until the service answers it, and returns the answer. The same request may be sent any number of times: ids in it make
 * the service execute it once. A refusal is an error with its code; after the deadline, unknown_outcome with call.id, or for reads the last refusal.
 * @param {Client} client @param {Call} call
 */
async function call (client, call) {
  const { signal, id, deadlineMs, wait: behind = 0 } = call
  signal?.throwIfAborted()
  const deadline = Date.now() + deadlineMs
  /** @type {MeterplexError | undefined} */
  let last
  for (let wait = FIRST_WAIT, unsure = false; ; wait = Math.min(2 * wait, LONGEST_WAIT)) {
    let waitMs = 0
    try {
      const answer = await attempt(client, call, Math.max(1, Math.min(client.options.timeoutMs + behind * 1000, deadline - Date.now())))
      const refusal = answer.refusal()
      const body = answer.status >= 200 && answer.status < 300 && answer.isJSON ? answer.json() : undefined
      if (body && call.isAnswer(body)) return body
      if (refusal) throw refusal
      const problem = answer.problem()
      last = problem ?? new MeterplexError('unavailable', `the answer ${answer.status} is not the service's`, { status: answer.status })
      waitMs = answer.retryAfterMs()
      unsure ||= problem?.status !== 429
    } catch (err) {
      if (err instanceof MeterplexError) throw err
      unsure = true
      if (signal?.aborted) throw id === undefined ? signal.reason : unknown(id, signal.reason)
      // An attempt that the deadline ended says less than the last answer.
      if (!last || Date.now() < deadline - 2) last = new MeterplexError('unavailable', /** @type {Error} */ (err).message, { cause: err })
    }
    waitMs = Math.max(waitMs, Math.random() * wait)
    if (Date.now() + waitMs + LEAST_ATTEMPT > deadline) throw id !== undefined && unsure ? unknown(id, last) : last
    await pause(waitMs, signal).catch((reason) => { throw id !== undefined && unsure ? unknown(id, reason) : reason })
  }
}

/** @param {string} id @param {any} cause */
const unknown = (id, cause) => new MeterplexError('unknown_outcome', `no answer in time: ${cause?.message ?? cause}; the request ${id} may have been executed`, { id, cause })

/** @param {number} ms @param {AbortSignal} [signal] */
function pause (ms, signal) {
  return new Promise((resolve, reject) => {
    const aborted = () => { clearTimeout(timer); reject(signal?.reason) }
    const timer = setTimeout(() => { signal?.removeEventListener('abort', aborted); resolve(undefined) }, timerMs(ms))
    signal?.addEventListener('abort', aborted)
  })
}

module.exports = { Answer, attempt, call }
