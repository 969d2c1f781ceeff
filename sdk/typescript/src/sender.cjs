'use strict'
// The sender: see "Send" in queue.md.
const { gzip, request } = require('#platform')
const { remedyOf } = require('./errors.cjs')
const { readEvent } = require('./event.cjs')
const { Answer } = require('./http.cjs')
const { timerMs } = require('./time.cjs')

/** @typedef {import('./client.cjs').Client} Client */
/** @typedef {{text: string, bytes: number, end: any}} Waiting */
/** What an answer means. @typedef {{is: 'verdicts', verdicts: any[]} | {is: 'again' | 'key' | 'whole', byService?: boolean, problem?: object, code: string, detail: string, waitMs?: number}} Judgement */

const FIRST_WAIT = 500
/** The longest random wait while a caller of flush or close waits. */
const FLUSH_WAIT = 1_000
const HOUR = 3_600_000

class Sender {
  /** @param {Client} client */
  constructor (client) {
    this.client = client
    this.options = client.options
    this.queue = client.queue
    this.size = this.options.maxEvents
    this.stopping = new AbortController()
    /** Is fulfilled when the sender is stopped. @type {Promise<void>} */
    this.end = new Promise((resolve) => this.stopping.signal.addEventListener('abort', () => resolve()))
    this.flushing = 0
    /** No event that waits was recorded before. */
    this.since = 0
    /** Attempts without success since failingSince; 0: the last one had its verdicts. */
    this.failures = 0
    this.failingSince = 0
    this.keyed = false
    this.hurried = false
    this.wake = () => {}
    /** Reports are made at most once an hour, and again after a success. @type {Map<string, number>} */
    this.reported = new Map()
    this.started = this.queue.start()
    this.done = this.run()
  }

  get stopped () { return this.stopping.signal.aborted }

  stop () {
    this.stopping.abort()
    this.wake()
  }

  async run () {
    await this.started
    while (!this.stopped) {
      try {
        await this.due()
        if (this.stopped) return
        const now = Date.now()
        const found = await this.queue.next(this.options.maxEvents, this.options.maxBytes)
        this.since = found && this.queue.count > found.events.length ? 0 : now
        this.warnOfAge()
        if (found) await this.sendAll(found.events, found.folder)
        this.client.progress()
      } catch (err) {
        this.report('queue_failed', /** @type {Error} */ (err).message)
        await this.sleep(1000)
      }
    }
  }

  /** due waits until a batch is due. */
  async due () {
    while (!this.stopped && !this.isDue()) {
      const age = this.since + this.options.maxAgeMs - Date.now()
      await this.sleep(this.queue.count > 0 ? Math.max(age, 1) : HOUR)
    }
  }

  isDue () {
    const { queue, options } = this
    if (queue.taken.length > 0) return true
    if (queue.count === 0) return false
    return this.flushing > 0 || queue.count >= options.maxEvents || queue.bytes >= options.maxBytes || Date.now() - this.since >= options.maxAgeMs
  }

  /** changed is called if events were recorded, or a queue was taken over. @param {boolean} first the queue was empty before */
  changed (first) {
    if (first) this.since = Date.now()
    if (first || this.isDue()) this.wake()
  }

  /** sleep waits, at most until wake is called. It keeps no process alive. @param {number} ms */
  sleep (ms) {
    return new Promise((resolve) => {
      if (this.stopped) return resolve(undefined)
      const timer = setTimeout(resolve, timerMs(ms))
      timer.unref?.()
      this.wake = () => { clearTimeout(timer); resolve(undefined) }
    })
  }

  /** sendAll sends events until each has its final verdict. @param {Waiting[]} events @param {any} folder */
  async sendAll (events, folder) {
    while (events.length > 0 && !this.stopped) {
      const batch = events.slice(0, this.size)
      const sent = batch.map((e) => readEvent(e.text))
      const judged = await this.deliver(batch, sent.map((e) => e.eventId))
      if (judged === undefined) continue
      if (!await this.keep(batch, sent, judged)) return
      await this.queue.advance(folder, batch).catch((/** @type {Error} */ err) => this.report('queue_failed', err.message))
      events = events.slice(batch.length)
      this.client.progress()
    }
  }

  /**
   * deliver sends the same bytes until they are answered.
   * @param {Waiting[]} batch @param {string[]} ids
   * @returns {Promise<Judgement | undefined>} the verdicts, or the refusal of one event; undefined: the batch is halved, or the sender ends
   */
  async deliver (batch, ids) {
    const body = await gzip(`{"events":[${batch.map((e) => e.text).join()}]}`)
    while (!this.stopped) {
      const judged = await this.attempt(body, ids)
      if (judged.is === 'verdicts' || judged.is === 'whole' && judged.byService && batch.length === 1) {
        this.succeeded()
        return judged
      }
      if (judged.is === 'whole' && batch.length > 1) {
        this.size = Math.ceil(batch.length / 2)
        return undefined
      }
      if (!this.stopped) await this.failed(judged)
    }
    return undefined
  }

  /** @param {Uint8Array} body @param {string[]} ids @returns {Promise<Judgement>} */
  async attempt (body, ids) {
    this.keyed = false // from here on, a new key ends the wait after this attempt
    /** @type {Record<string, string>} */
    const headers = { ...this.client.headers(), 'content-type': 'application/json', 'content-encoding': 'gzip' }
    if (this.failures > 0 && Date.now() - this.failingSince >= this.options.retryMs) headers['meterplex-replay'] = 'offline'
    try {
      const answer = await request({ ...this.client.transport, url: this.client.address('/usage/events'), method: 'POST', headers, body, timeoutMs: this.options.timeoutMs,
        signal: this.stopping.signal, background: true })
      return judge(new Answer(answer), ids)
    } catch (err) {
      return { is: 'again', code: 'unavailable', detail: /** @type {Error} */ (err).message }
    }
  }

  succeeded () {
    this.failures = 0
    for (const code of this.reported.keys()) if (code !== 'too_old') this.reported.delete(code)
    this.size = Math.min(this.options.maxEvents, this.size * 2)
  }

  /** failed waits before the next attempt. @param {Exclude<Judgement, {is: 'verdicts'}>} judged */
  async failed (judged) {
    const { retryMs, keyRetryMs } = this.options
    const now = Date.now()
    if (this.failures++ === 0) this.failingSince = now
    this.client.lastError = { code: judged.code, detail: judged.detail }
    if (judged.is === 'key') this.report(judged.code, judged.detail)
    else if (now - this.failingSince >= retryMs) this.report('unavailable', `${judged.code}: ${judged.detail}`)
    this.warnOfAge()
    const longest = Math.min(retryMs, FIRST_WAIT * 2 ** Math.min(this.failures - 1, 20), this.flushing > 0 ? FLUSH_WAIT : Infinity)
    const least = now + (judged.is === 'key' ? keyRetryMs : judged.waitMs ?? 0)
    const until = Math.max(least, now + Math.random() * longest)
    this.hurried = false
    while (!this.stopped && !this.keyed && Date.now() < (this.hurried ? least : until)) await this.sleep((this.hurried ? least : until) - Date.now())
  }

  /** hurry ends a random wait: a caller waits for the end of the queue. */
  hurry () {
    this.hurried = true
    this.wake()
  }

  newKey () {
    this.keyed = true
    this.wake()
  }

  /** keep keeps the events that are not counted, durably, and calls the handler with all verdicts. false: the client ended before the handler. @param {Waiting[]} batch @param {any[]} events @param {Judgement} judged */
  async keep (batch, events, judged) {
    const at = new Date().toISOString()
    if (judged.is !== 'verdicts') {
      const [{ text }, { eventId }] = [batch[0], events[0]]
      await this.durably(() => this.queue.damage(eventId, text, { problem: judged.problem, at }))
      this.client.report('damaged', `the service cannot read the event ${eventId}: ${judged.code}: ${judged.detail}`, { event: eventId })
      return true
    }
    const verdicts = judged.verdicts.map((v) => ({ ...v, remedy: v.remedy ?? remedyOf(v.code) }))
    const refusals = verdicts.flatMap(({ status, code = '', reason = '', remedy }, i) =>
      isCounted(status) ? [] : [{ event: events[i], text: batch[i].text, status, code, reason, remedy, at }])
    await this.durably(() => this.queue.reject(refusals))
    for (const { status } of verdicts) this.client.counts[counterOf(status)]++
    return await this.client.handle(events, verdicts)
  }

  /** durably repeats a write until it succeeds: the cursor must not move before. @param {() => Promise<unknown>} write */
  async durably (write) {
    for (;;) {
      try {
        await write()
        return
      } catch (err) {
        this.report('queue_failed', /** @type {Error} */ (err).message)
        if (this.stopped) throw err
        await this.sleep(1000)
      }
    }
  }

  warnOfAge () {
    const age = Date.now() - this.queue.oldest
    if (age > this.options.warnAgeMs) {
      this.report('too_old', `the oldest event that waits is ${Math.floor(age / HOUR)} hours old: the service refuses events that are more than 7 days old`)
    }
  }

  /** report reports an error once an hour, and again after a success. @param {string} code @param {string} detail */
  report (code, detail) {
    const now = Date.now()
    if (now - (this.reported.get(code) ?? -HOUR) < HOUR) return
    this.reported.set(code, now)
    this.client.report(code, detail)
  }
}

/** judge decides what an answer means for a batch with these ids. @param {Answer} answer @param {string[]} ids @returns {Judgement} */
function judge (answer, ids) {
  const { status } = answer
  if (status === 202 && answer.isJSON) {
    const verdicts = answer.json()?.events
    const matches = Array.isArray(verdicts) && verdicts.length === ids.length && verdicts.every((v, i) => v?.status && typeof v.status === 'string' && (v.eventId ?? '') === ids[i])
    if (matches) return { is: 'verdicts', verdicts }
  }
  const problem = answer.problem()
  const detail = problem?.detail ?? `the answer ${status} is not the service's`
  if (status === 401 || status === 403) return { is: 'key', code: problem?.code ?? (status === 401 ? 'unauthenticated' : 'forbidden'), detail }
  const code = problem?.code ?? 'unavailable'
  if (answer.isTemporary) return { is: 'again', code, detail, waitMs: answer.retryAfterMs() }
  // 404 and 405 refuse the address, not an event.
  return { is: 'whole', byService: problem !== undefined && status >= 400 && status !== 404 && status !== 405, problem: problem?.problem, code, detail }
}

/** @param {string} status */
const isCounted = (status) => status === 'accepted' || status === 'duplicate'
/** @param {string} status @returns {'accepted' | 'duplicates' | 'conflicts' | 'rejected'} */
const counterOf = (status) => status === 'accepted' ? 'accepted' : status === 'duplicate' ? 'duplicates' : status === 'conflict' ? 'conflicts' : 'rejected'

module.exports = { Sender, judge }
