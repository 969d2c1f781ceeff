'use strict'
// The client: options, record, flush, close, and what the application reads of the queue. index.d.ts describes each method.
const { version } = require('../package.json')
const { newFileQueue, newTransport } = require('#platform')
const { MeterplexError, invalid } = require('./errors.cjs')
const { prepare } = require('./event.cjs')
const limits = require('./limits.cjs')
const { MemoryQueue } = require('./memory.cjs')
const { Rows, receipt, reservations } = require('./reads.cjs')
const { Sender } = require('./sender.cjs')
const { timerMs } = require('./time.cjs')

const defaults = {
  tenant: '',
  durability: 'fsync',
  memory: false,
  maxEvents: 1000,
  maxBytes: 1 << 20,
  maxAgeMs: 1000,
  queueBytes: 2 ** 30,
  policy: 'deny',
  checkMs: 500,
  maxStaleMs: 60_000,
  deadlineMs: 10_000,
  readMs: 30_000,
  timeoutMs: 30_000,
  retryMs: 60_000,
  keyRetryMs: 60_000,
  warnAgeMs: 6 * 24 * 3_600_000
}
const others = new Set(['url', 'key', 'dir', 'ca', 'onVerdict', 'onError'])

/** Meterplex is the client: see index.d.ts. */
class Meterplex {
  #key

  /** @param {any} options */
  constructor ({ key, ...options }) {
    const known = /** @type {Record<string, unknown>} */ (defaults)
    for (const name of Object.keys(options)) if (!(name in known) && !others.has(name)) throw invalid(`the option ${name} is not known`)
    const given = Object.fromEntries(Object.entries(options).filter(([, value]) => value !== undefined))
    this.options = /** @type {typeof defaults & {url: string, dir?: string, ca?: any, onVerdict?: Function, onError?: Function}} */ ({ ...defaults, ...given })
    checkOptions(this.options, known)
    this.#key = checkKey(key)
    this.base = checkURL(this.options.url)
    this.transport = newTransport(this.base, this.options.ca)
    this.counts = { accepted: 0, duplicates: 0, conflicts: 0, rejected: 0, damaged: 0 }
    /** @type {{code: string, detail: string} | null} */
    this.lastError = null
    this.cache = new limits.Cache()
    /** Callers of flush. @type {Set<() => void>} */
    this.flushes = new Set()
    /** @type {Promise<any> | undefined} */
    this.closing = undefined
    const more = { report: this.report.bind(this), changed: (/** @type {boolean} */ first) => this.sender.changed(first) }
    this.queue = this.options.memory ? new MemoryQueue({ ...this.options, ...more }) : newFileQueue({ ...this.options, ...more })
    this.sender = new Sender(this)
  }

  headers () { return { authorization: `Bearer ${this.#key}`, accept: 'application/json; amounts=string', 'user-agent': `meterplex-typescript/${version}` } }
  /** @param {string} path */
  address (path) { return this.base + '/api/v1' + path }

  /** @param {any} event @param {{deadlineMs?: number, signal?: AbortSignal}} [options] */
  async record (event, options) { return this.append(prepare(event), options) }

  /** @param {any[]} events @param {{deadlineMs?: number, signal?: AbortSignal}} [options] */
  async recordMany (events, options) {
    const prepared = events.map((event, i) => {
      try {
        return prepare(event)
      } catch (err) {
        throw at(err, i)
      }
    })
    const done = await Promise.allSettled(prepared.map((event) => this.append(event, options)))
    const failed = done.flatMap((d, i) => d.status === 'rejected' ? [at(d.reason, i)] : [])
    if (failed.length > 0) throw Object.assign(failed[0], { errors: failed.flatMap((err) => err.errors ?? []) })
    return prepared.map(({ eventId, timestamp }) => ({ eventId, timestamp }))
  }

  /** append returns once a prepared event is durable. @param {ReturnType<typeof prepare>} event @param {{deadlineMs?: number, signal?: AbortSignal}} [options] */
  async append ({ eventId, timestamp, text }, { deadlineMs = this.options.deadlineMs, signal } = {}) {
    if (this.closing) throw new MeterplexError('closed', 'the client is closed')
    signal?.throwIfAborted()
    await this.queue.append(text, Date.parse(timestamp), eventId, deadlineMs, signal)
    return { eventId, timestamp }
  }

  /** @param {{deadlineMs?: number, signal?: AbortSignal}} [options] */
  async flush ({ deadlineMs = this.options.deadlineMs, signal } = {}) {
    signal?.throwIfAborted()
    await new Promise((resolve, reject) => {
      const end = (/** @type {any} */ reason) => {
        if (!this.flushes.delete(progress)) return
        clearTimeout(timer)
        signal?.removeEventListener('abort', aborted)
        this.sender.flushing--
        reason === undefined ? resolve(undefined) : reject(reason)
      }
      const aborted = () => end(signal?.reason)
      let goal = Infinity
      const progress = () => { if (this.queue.settled >= goal && !(this.queue.taken.length > 0)) end(undefined) }
      const timer = setTimeout(() => end(undefined), timerMs(deadlineMs)) // not unref'd: a caller waits
      signal?.addEventListener('abort', aborted)
      this.flushes.add(progress)
      this.sender.flushing++
      Promise.all([this.sender.started, this.queue.written()]).then(() => {
        goal = this.queue.confirmed
        this.sender.hurry()
        progress()
      })
    })
    return this.remaining()
  }

  /** progress is called after each batch. */
  progress () { for (const progress of [...this.flushes]) progress() }

  remaining () {
    const { count, oldest } = this.queue
    return { remaining: count, oldestMs: count > 0 ? Math.max(0, Date.now() - oldest) : 0 }
  }

  /** @param {{deadlineMs?: number}} [options] */
  close (options) { return this.closing ??= this.end(options) }
  /** @param {{deadlineMs?: number}} [options] */
  shutdown (options) { return this.close(options) }

  /** @param {{deadlineMs?: number}} [options] */
  async end (options) {
    await this.flush({ deadlineMs: options?.deadlineMs })
    this.sender.stop()
    await this.sender.done
    const left = this.remaining()
    await this.queue.close()
    this.transport.close()
    return left
  }

  stats () {
    const { remaining, oldestMs } = this.remaining()
    return { waiting: remaining, waitingBytes: this.queue.bytes, oldestMs, ...this.counts, lastError: this.lastError }
  }

  rejected () { return this.queue.rejected() }
  /** @param {string} eventId */
  acknowledge (eventId) { return this.queue.acknowledge(eventId) }

  /** @param {string} key */
  setKey (key) {
    this.#key = checkKey(key)
    this.sender.newKey()
  }

  /** @param {string} feature @param {any} [amount] @param {any} [options] */
  check (feature, amount, options) { return limits.check(this, feature, amount, options) }
  /** @param {string} feature @param {any} amount @param {any} [options] */
  consume (feature, amount, options) { return limits.consume(this, feature, amount, options) }
  /** @param {string} feature @param {any} amount @param {any} [options] */
  reserve (feature, amount, options) { return limits.reserve(this, feature, amount, options) }
  /** @param {string} feature @param {string} reservationId @param {any} amount @param {any} [options] */
  commit (feature, reservationId, amount, options) { return limits.commit(this, feature, reservationId, amount, options) }
  /** @param {string} feature @param {string} reservationId @param {number} ttlSeconds @param {any} [options] */
  extend (feature, reservationId, ttlSeconds, options) { return limits.extend(this, feature, reservationId, ttlSeconds, options) }
  /** @param {string} feature @param {string} reservationId @param {any} [options] */
  release (feature, reservationId, options) { return limits.release(this, feature, reservationId, options) }
  /** @param {string} feature @param {any} amount @param {(hold: any) => any} fn @param {any} [options] */
  withReservation (feature, amount, fn, options) { return limits.withReservation(this, feature, amount, fn, options) }

  /** @param {any} [options] */
  aggregates (options) { return new Rows(this, '/usage/aggregates', options) }
  /** @param {any} options */
  usage (options) { return new Rows(this, '/usage', options) }
  /** @param {any} [options] */
  events (options) { return new Rows(this, '/usage/events', options) }
  /** @param {string} eventId @param {any} [options] */
  receipt (eventId, options) { return receipt(this, eventId, options) }
  /** @param {any} [options] */
  entitlements (options) { return new Rows(this, '/entitlements', options) }
  /** @param {string} feature @param {any} [options] */
  reservations (feature, options) { return reservations(this, feature, options) }

  /** handle calls the handler of verdicts, and waits for what it returns, at most until the client ends: it may wait for that. @param {any[]} events @param {any[]} verdicts */
  async handle (events, verdicts) {
    const { onVerdict = logVerdict } = this.options
    const results = await Promise.race([this.sender.end, Promise.allSettled(events.map(async (event, i) => onVerdict(event, verdicts[i])))])
    for (const result of results ?? []) if (result.status === 'rejected') this.report('handler_failed', `onVerdict: ${result.reason?.message ?? result.reason}`)
    return results !== undefined
  }

  /** report calls the handler of errors. @param {string} code @param {string} detail @param {any} [more] */
  report (code, detail, more = {}) {
    this.lastError = { code, detail }
    if (code === 'damaged' && ('bytes' in more || 'event' in more)) this.counts.damaged++
    try {
      const { onError = logError } = this.options
      onError({ code, detail })
    } catch (err) {
      console.error('meterplex: onError:', err)
    }
  }
}
if (Symbol.asyncDispose) Object.defineProperty(Meterplex.prototype, Symbol.asyncDispose, { value: Meterplex.prototype.shutdown })

/** @param {any} err @param {number} i */
function at (err, i) {
  if (!(err instanceof MeterplexError)) return err
  const errors = err.errors.length > 0 ? err.errors : [{ pointer: '', code: err.code, detail: err.detail }]
  err.errors = errors.map((/** @type {any} */ one) => ({ ...one, pointer: `/events/${i}${one.pointer}` }))
  return err
}

/** @param {any} event @param {any} verdict */
function logVerdict (event, { status, code, reason, remedy }) {
  if (status !== 'accepted' && status !== 'duplicate') console.warn(`meterplex: the event ${event.eventId} is not counted: ${status}: ${code}: ${reason}. ${remedy}`)
}

/** @param {{code: string, detail: string}} err */
const logError = ({ code, detail }) => console.error(`meterplex: ${code}: ${detail}`)

/** @param {any} options @param {Record<string, unknown>} known */
function checkOptions (options, known) {
  for (const [name, value] of Object.entries(known)) {
    if (typeof value === 'number' && !(Number.isSafeInteger(options[name]) && options[name] > 0)) throw invalid(`${name} must be a positive integer`)
  }
  if (options.maxEvents > 1000 || options.maxBytes > 1 << 20) throw invalid('a batch has at most 1000 events and 1 MiB')
  if (options.durability !== 'fsync' && options.durability !== 'os') throw invalid('durability must be fsync or os')
  if (options.policy !== 'allow' && options.policy !== 'deny') throw invalid('policy must be allow or deny')
  if (options.memory !== true && typeof options.dir !== 'string') throw invalid('choose dir, a directory for the queue, or memory: true, which loses events with the process')
  if (options.memory === true && options.dir !== undefined) throw invalid('memory: true has no dir')
}

/** @param {unknown} key @returns {string} */
function checkKey (key) {
  if (typeof key !== 'string' || !/^[!-~]+$/.test(key)) throw invalid('key must be a tenant key, mp_live_… or mp_test_…')
  return key
}

/** @param {unknown} text */
function checkURL (text) {
  const url = typeof text === 'string' && URL.canParse(text) ? new URL(text) : undefined
  if (!url || !/^https?:$/.test(url.protocol) || url.username || url.password || url.search || url.hash) throw invalid('url must be the address of the service, e.g. https://meterplex.example')
  return url.href.replace(/\/+$/, '')
}

/** @typedef {Meterplex} Client */
module.exports = { Meterplex }
