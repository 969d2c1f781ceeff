'use strict'
const { MeterplexError } = require('./errors.cjs')
const { utf8Length } = require('./event.cjs')
const { timerMs } = require('./time.cjs')

/** @typedef {{text: string, bytes: number, end: undefined, time: number}} Kept */

/** MemoryQueue holds events in memory: those that are not sent are lost with the process. It has the methods of FileQueue. */
class MemoryQueue {
  /** @param {{queueBytes: number, changed: (first: boolean) => void}} options */
  constructor (options) {
    this.maxBytes = options.queueBytes
    this.changed = options.changed
    /** @type {Kept[]} */
    this.events = []
    this.bytes = 0
    this.confirmed = 0
    this.settled = 0
    /** Refused events. @type {any[]} */
    this.kept = []
    this.keptBytes = 0
    /** Callers that wait for room. @type {Map<() => void, (err: Error) => void>} */
    this.callers = new Map()
  }

  /** No queue of another client. @type {never[]} */
  get taken () { return [] }

  async start () {}
  get count () { return this.events.length }
  get oldest () { return this.events.length > 0 ? this.events[0].time : Infinity }

  /** @param {string} text @param {number} time @param {string} _ @param {number} deadlineMs @param {AbortSignal} [signal] @returns {Promise<void>} */
  append (text, time, _, deadlineMs, signal) {
    const bytes = 8 + utf8Length(text)
    const store = () => {
      if (this.bytes + this.keptBytes + bytes > this.maxBytes) return false
      this.events.push({ text, bytes, end: undefined, time })
      this.bytes += bytes
      this.confirmed++
      this.changed(this.events.length === 1)
      return true
    }
    if (this.callers.size === 0 && store()) return Promise.resolve()
    return new Promise((resolve, reject) => {
      const end = (/** @type {any} */ err) => {
        clearTimeout(timer)
        signal?.removeEventListener('abort', aborted)
        this.callers.delete(retry)
        err === undefined ? resolve() : reject(err)
      }
      const retry = () => { if (store()) end(undefined) }
      const aborted = () => end(signal?.reason)
      const full = () => end(new MeterplexError('queue_full', `${this.bytes} bytes wait in memory, and ${this.keptBytes} of rejected events; both may have ${this.maxBytes}`))
      const timer = setTimeout(full, timerMs(deadlineMs))
      signal?.addEventListener('abort', aborted)
      this.callers.set(retry, end)
    })
  }

  async written () {}

  /** @param {number} most @param {number} mostBytes */
  async next (most, mostBytes) {
    let n = 0
    for (let room = mostBytes; n < this.events.length && n < most && ((room -= this.events[n].bytes) >= 0 || n === 0);) n++
    return n > 0 ? { events: this.events.slice(0, n), folder: undefined } : undefined
  }

  /** @param {unknown} _ @param {{bytes: number}[]} events */
  async advance (_, events) {
    this.events.splice(0, events.length)
    this.bytes -= events.reduce((sum, e) => sum + e.bytes, 0)
    this.settled += events.length
    this.admit()
  }

  admit () { for (const retry of [...this.callers.keys()]) retry() }

  /** @param {any[]} refusals */
  async reject (refusals) {
    this.kept.push(...refusals)
    this.countKept()
  }

  async damage () {} // reported, and there is no file to keep it in
  async rejected () { return this.kept.map(({ text, ...refusal }) => refusal) }

  /** @param {string} eventId */
  async acknowledge (eventId) {
    this.kept = this.kept.filter(({ event }) => event.eventId !== eventId)
    this.countKept()
    this.admit()
  }

  countKept () { this.keptBytes = this.kept.reduce((sum, { text }) => sum + utf8Length(text), 0) }

  async close () {
    for (const end of [...this.callers.values()]) end(new MeterplexError('closed', 'the client was closed before there was room for the event'))
  }
}

module.exports = { MemoryQueue }
