'use strict'
const remedies = require('./codes.cjs')

/** The remedies of the codes that only the SDK has. @type {Record<string, string>} */
const own = {
  closed: 'Make a new client',
  invalid_argument: 'Correct the argument that the detail names',
  queue_full: 'Record it again later: events are sent as soon as the service answers. If the disk is full, make space',
  queue_failed: 'Make the directory of the queue writable, then record the event again',
  unavailable: 'Wait: it is sent again by itself. Check the address and the network',
  unknown_outcome: 'Repeat the call with the same id: it is executed once'
}

/** remedyOf returns the next action of the caller for a code, "" for an unknown one. @param {string} [code] */
const remedyOf = (code) => (code && (remedies[code] ?? own[code])) || ''

/** MeterplexError is every error of the SDK: see index.d.ts. */
class MeterplexError extends Error {
  /**
   * @param {string} code
   * @param {string} detail
   * @param {{status?: number, traceId?: string, errors?: any[], id?: string, problem?: any, cause?: unknown}} [more]
   */
  constructor (code, detail, more = {}) {
    super(`${code}: ${detail}`, more.cause === undefined ? undefined : { cause: more.cause })
    this.name = 'MeterplexError'
    this.code = code
    this.detail = detail
    this.status = more.status ?? 0
    this.traceId = more.traceId ?? ''
    this.errors = more.errors ?? []
    this.remedy = remedyOf(code)
    this.id = more.id
    this.problem = more.problem
  }
}

/** @param {string} detail */
const invalid = (detail) => new MeterplexError('invalid_argument', detail)

module.exports = { MeterplexError, remedyOf, invalid }
