'use strict'
// A folder q-<token> that this client owns: its own queue, or one that it has taken over. See "Files" and "Read" in queue.md.
const fs = require('node:fs/promises')
const os = require('node:os')
const path = require('node:path')
const { randomBytes } = require('node:crypto')
const { HEADER, MAGIC, MAX_RECORD, lengthAt, recordAt, nextRecord, isTorn, textOf } = require('./records.cjs')

/** A place in a queue. Offset 0 is the begin of a segment whose first bytes are not checked yet. @typedef {{segment: number, offset: number}} Place */
/** @typedef {{text: string, bytes: number, end: Place}} Waiting */

/** The tokens in use by all clients of this process and thread, also of other copies of this package. @type {Set<string>} */
const tokens = /** @type {any} */ (globalThis)[Symbol.for('meterplex.queues')] ??= new Set()

const FOLDER = 0o700
const FILE = 0o600
const HEARTBEAT = 60_000

class Folder {
  /** @param {import('./files.cjs').FileQueue} queue @param {string} token */
  constructor (queue, token) {
    this.queue = queue
    this.token = token
    this.path = path.join(queue.dir, 'q-' + token)
    /** The segments that exist. @type {number[]} */
    this.segments = []
    /** @type {Place} */
    this.cursor = { segment: 1, offset: 0 }
    /** Where confirmed records end; undefined: all files are read. @type {Place | undefined} */
    this.end = undefined
    this.count = 0
    this.bytes = 0
    /** The time of the oldest event in ms. */
    this.oldest = 0
    this.lost = false
    tokens.add(token)
  }

  /** create makes a new queue. @param {import('./files.cjs').FileQueue} queue */
  static async create (queue) {
    const folder = new Folder(queue, newToken())
    folder.end = { segment: 1, offset: 0 }
    const unnamed = path.join(queue.dir, 'tmp-' + folder.token)
    try {
      await makeFolder(queue.dir)
      await fs.mkdir(unnamed, { mode: FOLDER })
      await writeFile(path.join(unnamed, 'owner'), folder.owner(), queue.fsync) // without its owner, another tenant would take the queue
      if (queue.fsync) await syncFolder(unnamed)
      await fs.rename(unnamed, folder.path)
      if (queue.fsync) await syncFolder(queue.dir)
    } catch (err) {
      tokens.delete(folder.token)
      await fs.rm(unnamed, { recursive: true, force: true }).catch(() => {})
      throw err
    }
    return folder
  }

  /** takeOver makes a dead queue this client's. undefined: another client was faster. @param {import('./files.cjs').FileQueue} queue @param {string} name */
  static async takeOver (queue, name) {
    const folder = new Folder(queue, newToken())
    try {
      await fs.rename(path.join(queue.dir, name), folder.path)
      await folder.takeOwner()
      await folder.open()
      return folder
    } catch (err) {
      tokens.delete(folder.token)
      if (isGone(err)) return undefined
      throw err
    }
  }

  owner () {
    return JSON.stringify({ version: 1, token: this.token, pid: process.pid, host: os.hostname(), tenant: this.queue.tenant })
  }

  /** takeOwner writes the owner of a queue that is taken over. On a full disk it writes over the old one: the queue must be sent to make space. */
  async takeOwner () {
    try {
      await this.write('owner', this.owner(), this.queue.fsync)
    } catch (err) {
      if (!isFull(err)) throw err
      const handle = await fs.open(path.join(this.path, 'owner'), 'r+')
      try {
        const { bytesWritten } = await handle.write(this.owner(), 0)
        await handle.truncate(bytesWritten)
      } finally {
        await handle.close()
      }
    }
  }

  /** write replaces a file at once. @param {string} name @param {string} content @param {boolean} [sync] */
  async write (name, content, sync) {
    const file = path.join(this.path, name)
    await writeFile(file + '.tmp', content, sync)
    await fs.rename(file + '.tmp', file)
  }

  /** owned reports whether the queue is still this client's. */
  async owned () {
    const owner = await readOwner(this.path)
    return owner !== undefined && owner.token === this.token
  }

  /** renew sets the time at which the owner was last seen. */
  async renew (ms = Date.now()) {
    await fs.utimes(path.join(this.path, 'owner'), new Date(ms), new Date(ms))
  }

  /** open reads the cursor and the segments, and counts the events. */
  async open () {
    const names = await fs.readdir(this.path)
    this.segments = names.filter((name) => /^\d{8}\.seg$/.test(name)).map((name) => parseInt(name, 10)).sort((a, b) => a - b)
    const cursor = await this.readCursor()
    this.cursor = cursor && this.segments.includes(cursor.segment) ? cursor : { segment: this.segments[0] ?? 1, offset: 0 }
    for (const segment of this.segments.filter((n) => n >= this.cursor.segment)) {
      const bytes = await fs.readFile(this.file(segment))
      for (let at = segment === this.cursor.segment ? Math.max(this.cursor.offset, MAGIC.length) : MAGIC.length, length; (length = lengthAt(bytes, at)) > 0 && at + length <= bytes.length; at += length) {
        if (this.count++ === 0) this.oldest = timeOf(textOf(bytes.subarray(at, at + length)))
        this.bytes += length
      }
    }
  }

  /** @returns {Promise<Place | undefined>} */
  async readCursor () {
    try {
      const { segment, offset } = JSON.parse(await fs.readFile(path.join(this.path, 'cursor'), 'utf8'))
      if (Number.isSafeInteger(segment) && segment > 0 && Number.isSafeInteger(offset) && offset >= 0) return { segment, offset: offset <= MAGIC.length ? 0 : offset }
    } catch (err) {
      if (!(err instanceof SyntaxError) && /** @type {any} */ (err).code !== 'ENOENT') throw err
    }
    return undefined
  }

  /** @param {number} segment */
  file (segment) { return path.join(this.path, String(segment).padStart(8, '0') + '.seg') }

  /**
   * next returns events behind the cursor, in order: at least one, if there is one. It moves damaged bytes aside, and cuts a torn tail.
   * @param {number} most @param {number} mostBytes of events, without the headers of their records
   * @returns {Promise<Waiting[]>}
   */
  async next (most, mostBytes) {
    /** @type {Waiting[]} */
    const events = []
    let at = this.cursor
    for (let room = mostBytes, full = false; !full && events.length < most;) {
      const segment = this.segments.find((n) => n >= at.segment)
      if (segment === undefined) break
      if (segment > at.segment) {
        if (events.length > 0) break
        this.queue.report('damaged', `the segments from ${at.segment} to ${segment - 1} of the queue ${this.token} are missing: their events are lost`, {})
        at = this.cursor = { segment, offset: 0 }
      }
      const last = segment === this.segments[this.segments.length - 1]
      const limit = segment === this.end?.segment ? this.end.offset : (await fs.stat(this.file(segment))).size
      if (at.offset >= limit) {
        if (last) break
        at = { segment: segment + 1, offset: 0 }
        continue
      }
      const bytes = await this.read(segment, at.offset, Math.min(limit, at.offset + mostBytes + MAX_RECORD))
      let used = at.offset === 0 && bytes.subarray(0, MAGIC.length).equals(MAGIC) ? MAGIC.length : 0
      for (let length; events.length < most && (used > 0 || at.offset > 0) && (length = recordAt(bytes, used)) > 0;) {
        if ((room -= length - HEADER) < 0 && events.length > 0) {
          full = true
          break
        }
        used += length
        events.push({ text: textOf(bytes.subarray(used - length, used)), bytes: length, end: { segment, offset: at.offset + used } })
      }
      if (full && used === 0) break
      if (used > 0) at = { segment, offset: at.offset + used }
      else if (events.length > 0) break
      else {
        const past = await this.setAside(at, limit, last)
        if (past === undefined) break
        at = this.cursor = past
      }
    }
    if (events.length > 0) this.oldest = timeOf(events[0].text)
    else if (!this.end || this.end.segment === at.segment && this.end.offset === at.offset) this.count = this.bytes = 0
    return events
  }

  /**
   * setAside copies the bytes from a place to the next record, or cuts the torn tail of a queue that was taken over (undefined).
   * @param {Place} at @param {number} limit @param {boolean} last
   */
  async setAside (at, limit, last) {
    const bytes = await this.read(at.segment, at.offset, limit)
    const next = nextRecord(bytes, 1)
    if (next < 0 && last && !this.end && isTorn(bytes)) {
      await fs.truncate(this.file(at.segment), at.offset)
      return undefined
    }
    const damaged = next < 0 ? bytes : bytes.subarray(0, next)
    await this.queue.saveDamaged(`${this.token}-${String(at.segment).padStart(8, '0')}-${at.offset}.bin`, damaged)
    this.queue.report('damaged', `${damaged.length} bytes at ${at.offset} of segment ${at.segment} of the queue ${this.token} are no event; they are in ${this.queue.dir}/damaged`,
      { segment: at.segment, offset: at.offset, bytes: damaged.length })
    return { segment: at.segment, offset: at.offset + damaged.length }
  }

  /** @param {number} segment @param {number} from @param {number} to */
  async read (segment, from, to) {
    const handle = await fs.open(this.file(segment), 'r')
    try {
      const bytes = Buffer.allocUnsafe(to - from)
      const { bytesRead } = await handle.read(bytes, 0, bytes.length, from)
      return bytes.subarray(0, bytesRead)
    } finally {
      await handle.close()
    }
  }

  /** advance moves the cursor behind events that have their final verdicts. @param {Waiting[]} events */
  async advance (events) {
    this.cursor = events[events.length - 1].end
    this.count = Math.max(0, this.count - events.length)
    this.bytes = Math.max(0, this.bytes - events.reduce((sum, e) => sum + e.bytes, 0))
    try {
      await this.write('cursor', JSON.stringify(this.cursor))
    } finally { // also if the disk is full: it is freed, and a cursor whose segment is missing means the first one
      while (this.segments[0] < this.cursor.segment) await fs.rm(this.file(/** @type {number} */ (this.segments.shift())), { force: true })
    }
  }

  /** release lets the next client take the queue over at once. */
  async release () {
    await this.renew(Date.now() - 2 * HEARTBEAT)
    this.forget()
  }

  /** remove deletes the queue. It is renamed first: no client sees a part of it. */
  async remove () {
    const unnamed = path.join(this.queue.dir, 'tmp-' + this.token)
    await fs.rename(this.path, unnamed)
    await fs.rm(unnamed, { recursive: true, force: true })
    this.forget()
  }

  forget () {
    this.lost = true
    tokens.delete(this.token)
  }
}

/** isDead reports whether nobody writes or sends a queue any more. @param {string} folder @param {string} tenant */
async function isDead (folder, tenant) {
  const owner = await readOwner(folder)
  if (owner === undefined) return true
  if (owner.tenant && owner.tenant !== tenant || tokens.has(owner.token)) return false
  const renewed = (await fs.stat(path.join(folder, 'owner'))).mtimeMs
  if (Date.now() - renewed > HEARTBEAT) return true
  if (owner.host !== os.hostname()) return false
  // A token of this process that this thread does not know is a worker thread's, or is left from an earlier process with the same number.
  return owner.pid === process.pid ? renewed < Date.now() - process.uptime() * 1000 - 1000 : !isRunning(owner.pid)
}

/** @param {number} pid */
function isRunning (pid) {
  try {
    process.kill(pid, 0)
    return true
  } catch (err) {
    return /** @type {any} */ (err).code === 'EPERM'
  }
}

/** readOwner returns the owner of a queue, undefined if it cannot be read. @param {string} folder */
async function readOwner (folder) {
  try {
    const owner = JSON.parse(await fs.readFile(path.join(folder, 'owner'), 'utf8'))
    if (typeof owner?.token === 'string' && Number.isSafeInteger(owner.pid) && owner.pid > 0) return owner
  } catch (err) {
    if (!(err instanceof SyntaxError) && !isGone(err)) throw err
  }
  return undefined
}

/** makeFolder makes a folder and those above it, durably. @param {string} folder an absolute path */
async function makeFolder (folder) {
  const first = await fs.mkdir(folder, { recursive: true, mode: FOLDER })
  for (let made = folder; first !== undefined && made.length >= first.length; made = path.dirname(made)) {
    await syncFolder(path.dirname(made)).catch(() => {}) // there may be no right to read it
  }
}

/** @param {string} file @param {string | Buffer} content @param {boolean} [sync] */
async function writeFile (file, content, sync) {
  const handle = await fs.open(file, 'w', FILE)
  try {
    await handle.writeFile(content)
    if (sync) await handle.sync()
  } finally {
    await handle.close()
  }
}

/** @param {string} folder */
async function syncFolder (folder) {
  if (process.platform === 'win32') return // folders cannot be synced
  const handle = await fs.open(folder, 'r')
  try {
    await handle.sync()
  } finally {
    await handle.close()
  }
}

const newToken = () => randomBytes(8).toString('hex')
/** @param {unknown} err */
const isFull = (err) => ['ENOSPC', 'EDQUOT'].includes(/** @type {any} */ (err)?.code)
/** @param {unknown} err */
const isGone = (err) => /** @type {any} */ (err)?.code === 'ENOENT'
/** @param {string} text */
const timeOf = (text) => { try { return Date.parse(JSON.parse(text).timestamp) || 0 } catch { return 0 } }

module.exports = { Folder, isDead, isFull, isGone, makeFolder, syncFolder, writeFile, tokens, FOLDER, FILE }
