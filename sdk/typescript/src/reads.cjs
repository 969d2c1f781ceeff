'use strict'
// Reads: lists are iterators over all pages.
const { checkFeature } = require('./event.cjs')
const { call } = require('./http.cjs')

/** @typedef {import('./client.cjs').Client} Client */

/** Rows is a list that is read page by page, as it is iterated. */
class Rows {
  /** @param {Client} client @param {string} path @param {any} [options] */
  constructor (client, path, options = {}) {
    /** The last page that was read, without its rows: asOfPosition and the like. @type {any} */
    this.page = undefined
    Object.defineProperty(this, 'read', { value: (/** @type {string | undefined} */ cursor) => read(client, path, options, (body) => Array.isArray(body.data), cursor) })
  }

  async * [Symbol.asyncIterator] () {
    let cursor
    do {
      const { data, ...page } = await /** @type {any} */ (this).read(cursor)
      this.page = page
      yield * data
      cursor = page.nextCursor
    } while (cursor)
  }

  /** toArray reads all pages. */
  async toArray () {
    const rows = []
    for await (const row of this) rows.push(row)
    return rows
  }
}

/** read reads once. @param {Client} client @param {string} path @param {any} options @param {(body: any) => boolean} isAnswer @param {string} [cursor] */
function read (client, path, { wait, signal, deadlineMs = client.options.readMs + (wait ?? 0) * 1000, ...query } = {}, isAnswer, cursor) {
  return call(client, { method: 'GET', path, query: { ...query, cursor }, wait, signal, deadlineMs, isAnswer })
}

/** receipt: see index.d.ts. @param {Client} client @param {string} eventId @param {any} [options] */
const receipt = async (client, eventId, options) => read(client, '/usage/events/' + encodeURIComponent(eventId), options, (body) => body.eventId === eventId)

/** reservations: see index.d.ts. @param {Client} client @param {string} feature @param {any} [options] */
function reservations (client, feature, options) {
  checkFeature(feature)
  return new Rows(client, `/entitlements/${feature}/reservations`, options)
}

module.exports = { Rows, receipt, reservations }
