'use strict'
// The queue on disk: the client's own folder, and those of dead clients that it has taken over.
const fs = require('node:fs/promises')
const path = require('node:path')
const { Folder, isDead, isGone, tokens } = require('./folder.cjs')
const { Refused } = require('./refused.cjs')
const { Writer } = require('./writer.cjs')

const RENEW_MS = 5_000
const TAKE_OVER_MS = 30_000
const LEFTOVER_MS = 60_000

/** @typedef {(code: string, detail: string, more?: object) => void} Report */

class FileQueue {
  /** @param {{dir: string, tenant: string, durability: string, queueBytes: number, report: Report, changed: (first: boolean) => void}} options */
  constructor (options) {
    this.dir = path.resolve(options.dir)
    this.tenant = options.tenant
    this.fsync = options.durability !== 'os'
    this.maxBytes = options.queueBytes
    this.report = options.report
    this.changed = options.changed
    this.writer = new Writer(this)
    this.refused = new Refused(this.dir)
    /** @type {Folder[]} */
    this.taken = []
    /** Numbers of events that this client confirmed, and of those that need no more of it: they have a verdict, or another client took them over. */
    this.confirmed = 0
    this.settled = 0
    /** @type {NodeJS.Timeout[]} */
    this.timers = []
    /** @type {Promise<void> | undefined} */
    this.scanning = undefined
  }

  /** start takes over the queues of dead clients, now and from time to time. */
  async start () {
    this.timers = [setInterval(() => this.renew(), RENEW_MS).unref(), setInterval(() => this.takeOver(), TAKE_OVER_MS).unref()]
    await this.takeOver()
  }

  get own () { return this.writer.folder }
  get folders () { return this.own ? [...this.taken, this.own] : this.taken }
  get count () { return this.folders.reduce((sum, folder) => sum + folder.count, 0) }
  get bytes () { return this.folders.reduce((sum, folder) => sum + folder.bytes, 0) }
  /** The time of the oldest event in ms, 0 without one. */
  get oldest () { return Math.min(...this.folders.filter((folder) => folder.count > 0).map((folder) => folder.oldest), Infinity) }

  /** @param {string} text @param {number} time @param {string} eventId @param {number} deadlineMs @param {AbortSignal} [signal] */
  append (text, time, eventId, deadlineMs, signal) { return this.writer.append(text, time, eventId, deadlineMs, signal) }

  /** written waits for all events whose append has begun. */
  async written () { await this.writer.running }

  /** recorded is called by the writer. @param {number} n */
  recorded (n) {
    this.confirmed += n
    this.changed(this.own?.count === n)
  }

  /** next returns the next events in the order of sending: those of dead clients first. @param {number} most @param {number} mostBytes */
  async next (most, mostBytes) {
    for (const folder of [...this.taken]) {
      try {
        const events = await this.using(folder, () => folder.next(most, mostBytes))
        if (events && events.length > 0) return { events, folder }
        if (!folder.lost) await this.using(folder, () => folder.remove())
      } catch (err) { // it must not stop the other queues: a client takes it over again when its owner is old enough
        this.report('queue_failed', `the queue ${folder.token} cannot be read: ${/** @type {Error} */ (err).message}`)
      }
      this.lose(folder)
    }
    const folder = this.own
    const events = folder && await this.using(folder, () => folder.next(most, mostBytes))
    if (events && events.length > 0) return { events, folder }
    if (this.count === 0) this.settled = this.confirmed // also if damaged events left nothing to send
    return undefined
  }

  /** advance is called once events have their final verdicts. @param {Folder} folder @param {import('./folder.cjs').Waiting[]} events */
  async advance (folder, events) {
    if (folder === this.own) this.settled += events.length
    await this.using(folder, () => folder.advance(events))
    this.writer.wake()
  }

  /** using runs an access to a folder. undefined: another client has taken it over. @template T @param {Folder} folder @param {() => Promise<T>} access */
  async using (folder, access) {
    try {
      return folder.lost ? undefined : await access()
    } catch (err) {
      if (!isGone(err) || await folder.owned()) throw err
      await (folder === this.own ? this.writer.drop() : this.lose(folder))
      return undefined
    }
  }

  /** lose forgets a folder that is empty, or that another client sends. @param {Folder} folder */
  lose (folder) {
    folder.forget()
    this.taken = this.taken.filter((f) => f !== folder)
    this.settled = this.confirmed - (this.own?.count ?? 0)
    this.changed(false)
  }

  async renew () {
    for (const folder of this.folders) await this.using(folder, () => folder.renew()).catch((err) => this.report('queue_failed', err.message))
  }

  /** takeOver takes over the queues of dead clients. */
  takeOver () {
    return this.scanning ??= this.scan().catch((err) => this.report('queue_failed', err.message)).finally(() => { this.scanning = undefined })
  }

  async scan () {
    const names = await fs.readdir(this.dir).catch((err) => { if (isGone(err)) return []; throw err })
    /** @type {{name: string, renewed: number}[]} */
    const dead = []
    for (const name of names) {
      const folder = path.join(this.dir, name)
      try {
        if (/^q-[0-9a-f]{16}$/.test(name) && !tokens.has(name.slice(2)) && await isDead(folder, this.tenant)) {
          dead.push({ name, renewed: await fs.stat(path.join(folder, 'owner')).then((owner) => owner.mtimeMs, () => 0) })
        } else if (/^tmp-[0-9a-f]{16}$/.test(name) && Date.now() - (await fs.stat(folder)).mtimeMs > LEFTOVER_MS) {
          await fs.rm(folder, { recursive: true, force: true })
        }
      } catch (err) {
        if (!isGone(err)) this.report('queue_failed', /** @type {Error} */ (err).message)
      }
    }
    for (const { name } of dead.sort((a, b) => a.renewed - b.renewed)) { // the one that died first in front
      const taken = await Folder.takeOver(this, name)
      if (taken) this.taken.push(taken)
    }
    if (this.taken.length > 0) this.changed(false)
  }

  /** @param {import('./refused.cjs').Refusal[]} refusals */
  reject (refusals) { return this.refused.reject(refusals) }
  /** @param {string} eventId @param {string} text @param {object} more */
  damage (eventId, text, more) { return this.refused.damage(eventId, text, more) }
  /** @param {string} name @param {Buffer} bytes */
  saveDamaged (name, bytes) { return this.refused.bytes(name, bytes) }
  rejected () { return this.refused.list() }
  /** @param {string} eventId */
  acknowledge (eventId) { return this.refused.acknowledge(eventId) }

  /** close lets the next client take over what remains, and removes what is empty. The sender has ended. */
  async close () {
    this.timers.forEach(clearInterval)
    await this.scanning
    await this.writer.stop()
    for (const folder of this.folders) {
      // Only a queue that was read to its end is empty: the number of events of one that was taken over is an estimate.
      await this.using(folder, () => folder === this.own && folder.count === 0 ? folder.remove() : folder.release()).catch((err) => this.report('queue_failed', err.message))
    }
  }
}

module.exports = { FileQueue }
