'use strict'
// The folders rejected/ and damaged/: events and bytes that the service did not count. See "Send" in queue.md.
const fs = require('node:fs/promises')
const path = require('node:path')
const { createHash } = require('node:crypto')
const { withAmount } = require('./event.cjs')
const { isGone, makeFolder, syncFolder, writeFile } = require('./folder.cjs')

/** @typedef {{event: any, text: string, status: string, code: string, reason: string, remedy: string, at: string}} Refusal */

const AT_ONCE = 16

class Refused {
  /** @param {string} dir */
  constructor (dir) {
    this.rejected = path.join(dir, 'rejected')
    this.damaged = path.join(dir, 'damaged')
  }

  /** reject keeps events that the service did not count, durably. @param {Refusal[]} refusals */
  async reject (refusals) {
    const files = [...new Map(refusals.map(({ event, text, ...more }) => [nameOf(event.eventId, text), contentOf(text, more)]))] // one event may be in a batch twice
    for (let i = 0; i < files.length; i += AT_ONCE) {
      await Promise.all(files.slice(i, i + AT_ONCE).map(([name, content]) => this.save(this.rejected, name, content)))
    }
    if (files.length > 0) await syncFolder(this.rejected)
  }

  /** damage keeps an event that the service cannot read, durably. @param {string} eventId @param {string} text @param {object} more */
  async damage (eventId, text, more) {
    await this.save(this.damaged, 'event-' + nameOf(eventId, text), contentOf(text, more))
    await syncFolder(this.damaged)
  }

  /** bytes keeps bytes that are no record, durably. @param {string} name @param {Buffer} bytes */
  async bytes (name, bytes) {
    await this.save(this.damaged, name, bytes)
    await syncFolder(this.damaged)
  }

  /** list returns the refused events. */
  async list () {
    /** @type {any[]} */
    const all = []
    for (const name of await this.names('')) {
      try {
        const refusal = JSON.parse(await fs.readFile(path.join(this.rejected, name), 'utf8'))
        all.push({ ...refusal, event: withAmount(refusal.event) })
      } catch (err) {
        if (!isGone(err)) throw err
      }
    }
    return all.sort((a, b) => String(a.at).localeCompare(String(b.at)))
  }

  /** @param {string} eventId */
  async acknowledge (eventId) {
    for (const name of await this.names(hash(eventId, 32) + '-')) await fs.rm(path.join(this.rejected, name), { force: true })
  }

  /** @param {string} prefix */
  async names (prefix) {
    try {
      return (await fs.readdir(this.rejected)).filter((name) => name.startsWith(prefix) && name.endsWith('.json')).sort()
    } catch (err) {
      if (isGone(err)) return []
      throw err
    }
  }

  /** @param {string} folder @param {string} name @param {string | Buffer} content */
  async save (folder, name, content) {
    await makeFolder(folder)
    const file = path.join(folder, name)
    await writeFile(file + '.tmp', content, true)
    await fs.rename(file + '.tmp', file)
  }
}

/** @param {string} text @param {number} digits */
const hash = (text, digits) => createHash('sha256').update(text).digest('hex').slice(0, digits)
/** @param {string} eventId @param {string} text */
const nameOf = (eventId, text) => `${hash(eventId, 32)}-${hash(text, 16)}.json`
/** An event that is no JSON is a text there. @param {string} text @param {object} more */
const contentOf = (text, more) => `{"event":${isJSON(text) ? text : JSON.stringify(text)},${JSON.stringify(more, (_, value) => typeof value === 'bigint' ? String(value) : value).slice(1)}`

/** @param {string} text */
function isJSON (text) {
  try {
    JSON.parse(text)
    return true
  } catch {
    return false
  }
}

module.exports = { Refused }
