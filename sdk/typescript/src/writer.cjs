'use strict'
// The writer of a client's own queue: see "Write" in queue.md.
const fs = require('node:fs/promises')
const { MeterplexError } = require('./errors.cjs')
const { Folder, FILE, isFull, isGone, syncFolder } = require('./folder.cjs')
const { MAGIC, SEGMENT_BYTES, encode } = require('./records.cjs')
const { timerMs } = require('./time.cjs')

/** late: the deadline is over while the disk writes it. @typedef {{record: Buffer, time: number, state: 'waiting' | 'writing' | 'done', late: boolean, resolve: () => void, reject: (err: Error) => void}} Entry */

/** A group is in two segments at most. */
const GROUP_BYTES = 1 << 20
const RETRY_MS = 250
/** How long a write that has begun may take after the caller's deadline, before its outcome is unknown. */
const GRACE_MS = 1000

class Writer {
  /** @param {import('./files.cjs').FileQueue} queue */
  constructor (queue) {
    this.queue = queue
    /** @type {Folder | undefined} */
    this.folder = undefined
    /** The file that records are appended to. @type {fs.FileHandle | undefined} */
    this.file = undefined
    /** @type {Entry[]} */
    this.waiting = []
    /** @type {Promise<void> | undefined} */
    this.running = undefined
    this.full = ''
    this.stopped = false
    this.wake = () => {}
  }

  /**
   * append returns once an event is durable. Concurrent callers share a sync.
   * @param {string} text @param {number} time the time of the event in ms @param {string} eventId @param {number} deadlineMs @param {AbortSignal} [signal]
   * @returns {Promise<void>}
   */
  append (text, time, eventId, deadlineMs, signal) {
    return new Promise((resolve, reject) => {
      const end = () => {
        entry.state = 'done'
        clearTimeout(timer)
        signal?.removeEventListener('abort', aborted)
      }
      /** @type {Entry} */
      const entry = { record: encode(text), time, state: 'waiting', late: false, resolve: () => { end(); resolve() }, reject: (err) => { end(); reject(err) } }
      const aborted = () => entry.reject(entry.state === 'waiting' ? signal?.reason : unknownOutcome(eventId, signal?.reason))
      let timer = setTimeout(() => { // not unref'd: a caller waits
        if (entry.state === 'waiting') return entry.reject(this.queueFull())
        entry.late = true
        timer = setTimeout(() => entry.reject(unknownOutcome(eventId)), GRACE_MS)
      }, timerMs(deadlineMs))
      signal?.addEventListener('abort', aborted)
      this.waiting.push(entry)
      this.running ??= this.run()
    })
  }

  queueFull () {
    return new MeterplexError('queue_full', this.full || `${this.queue.bytes} bytes wait in ${this.queue.dir}, which may hold ${this.queue.maxBytes}`)
  }

  async run () {
    await undefined // callers of the same turn share the first sync
    while (this.waiting.length > 0) {
      const group = this.group()
      if (group.length === 0) {
        await this.pause()
        continue
      }
      try {
        await this.write(group)
        this.full = ''
        for (const entry of group) if (entry.state !== 'done') entry.resolve()
      } catch (err) {
        await this.failed(group, /** @type {NodeJS.ErrnoException} */ (err))
      }
    }
    this.running = undefined // at once: an entry that comes now begins the next run
  }

  /** group takes the next entries to write, as far as the queue has room. */
  group () {
    /** @type {Entry[]} */
    const group = []
    const room = this.queue.maxBytes - this.queue.bytes
    let i = 0
    for (let bytes = 0; i < this.waiting.length && bytes < GROUP_BYTES; i++) {
      const entry = this.waiting[i]
      if (entry.state !== 'waiting') continue
      bytes += entry.record.length
      if (bytes > room) break
      entry.state = 'writing'
      group.push(entry)
    }
    this.waiting.splice(0, i)
    return group
  }

  /** pause waits for room, and looks again for callers that have left. */
  pause () {
    return new Promise((resolve) => {
      const timer = setTimeout(resolve, RETRY_MS)
      this.wake = () => { clearTimeout(timer); resolve(undefined) }
    })
  }

  /** write writes records and confirms that the queue still belongs to this client: else it begins another, and writes them there. @param {Entry[]} group */
  async write (group) {
    for (;;) {
      const folder = this.folder ??= await Folder.create(this.queue)
      try {
        const end = await this.put(folder, group)
        if (await folder.owned()) {
          this.confirm(folder, group, end)
          return
        }
      } catch (err) {
        if (!folder.lost && (!isGone(err) || await folder.owned())) throw err
      }
      await this.drop()
    }
  }

  /** put appends records and syncs them. @param {Folder} folder @param {Entry[]} group @returns {Promise<import('./folder.cjs').Place>} their end */
  async put (folder, group) {
    let { segment, offset } = /** @type {import('./folder.cjs').Place} */ (folder.end)
    for (let i = 0; i < group.length;) {
      const made = this.file === undefined || offset >= SEGMENT_BYTES
      if (made) {
        await this.close()
        if (offset > 0) segment++
        offset = 0
        this.file = await fs.open(folder.file(segment), 'w', FILE)
      }
      /** @type {any[]} */
      const parts = made ? [MAGIC] : []
      let end = offset + (made ? MAGIC.length : 0)
      for (; i < group.length && end < SEGMENT_BYTES; end += group[i++].record.length) parts.push(group[i].record)
      const file = /** @type {fs.FileHandle} */ (this.file)
      await writeAll(file, Buffer.concat(parts), offset)
      if (this.queue.fsync) await file.datasync()
      if (made && this.queue.fsync) await syncFolder(folder.path)
      offset = end
    }
    return { segment, offset }
  }

  /** @param {Folder} folder @param {Entry[]} group @param {import('./folder.cjs').Place} end */
  confirm (folder, group, end) {
    for (let n = (folder.segments[folder.segments.length - 1] ?? 0) + 1; n <= end.segment; n++) folder.segments.push(n)
    if (folder.count === 0) folder.oldest = group[0].time
    folder.end = end
    folder.count += group.length
    folder.bytes += group.reduce((sum, entry) => sum + entry.record.length, 0)
    this.queue.recorded(group.length)
  }

  /**
   * failed cuts off what was written, and leaves the segment. A full disk is tried again until the deadlines of the callers.
   * @param {Entry[]} group @param {NodeJS.ErrnoException} err
   */
  async failed (group, err) {
    await this.close()
    const folder = this.folder
    if (folder?.end && folder.end.offset > 0) await fs.truncate(folder.file(folder.end.segment), folder.end.offset).catch(() => {})
    if (folder?.end) await fs.rm(folder.file(folder.end.segment + (folder.end.offset > 0 ? 1 : 0)), { force: true }).catch(() => {})
    if (isFull(err) && !this.stopped) {
      this.full = `the disk of ${this.queue.dir} is full: ${err.message}`
      for (const entry of group) if (entry.state === 'writing') entry.late ? entry.reject(this.queueFull()) : entry.state = 'waiting'
      this.waiting.unshift(...group)
      await this.pause()
      return
    }
    for (const entry of group) if (entry.state !== 'done') entry.reject(new MeterplexError('queue_failed', err.message, { cause: err }))
  }

  /** stop refuses the events that wait for room, and waits for those that are being written. */
  async stop () {
    this.stopped = true
    for (const entry of this.waiting) if (entry.state === 'waiting') entry.reject(new MeterplexError('closed', 'the client was closed before there was room for the event'))
    this.wake()
    await this.running
    await this.close()
  }

  /** drop forgets a queue that another client has taken over. */
  async drop () {
    const folder = this.folder
    this.folder = undefined
    if (folder) this.queue.lose(folder)
    await this.close()
  }

  async close () {
    const file = this.file
    this.file = undefined
    await file?.close().catch(() => {})
  }
}

/** @param {fs.FileHandle} file @param {Uint8Array} bytes @param {number} position */
async function writeAll (file, bytes, position) {
  for (let done = 0; done < bytes.length;) done += (await file.write(bytes, done, bytes.length - done, position + done)).bytesWritten
}

/** @param {string} id @param {unknown} [cause] */
const unknownOutcome = (id, cause) => new MeterplexError('unknown_outcome', `the disk did not confirm the event ${id} in time: it may be recorded`, { id, cause })

module.exports = { Writer }
