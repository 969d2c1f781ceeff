'use strict'
// Middleware that counts the requests of an application.

/** @typedef {import('./client.cjs').Client} Client */

/** count records one request. It never fails: an error goes to onError. @param {Client} client @param {any} options @param {any} request @param {any} response */
async function count (client, options, request, response) {
  try {
    const { feature, amount = () => 1n, metadata, eventId, count = isServed } = options
    if (!await count(request, response)) return
    await client.record({ feature, amount: await amount(request, response), metadata: await metadata?.(request, response), eventId: await eventId?.(request, response) })
  } catch (err) {
    client.report(/** @type {any} */ (err).code ?? 'handler_failed', `a request was not counted: ${/** @type {Error} */ (err).message}`)
  }
}

/** @param {any} _ @param {any} response */
const isServed = (_, response) => (response.statusCode ?? response.status) < 500

/** countRequests: see index.d.ts. @param {Client} client @param {any} options */
function countRequests (client, options) {
  return (/** @type {any} */ request, /** @type {any} */ response, /** @type {any} */ next) => {
    let ended = false
    for (const event of ['finish', 'close']) { // close alone: its client left before the end
      response.once(event, () => {
        if (!ended) count(client, options, request, response)
        ended = true
      })
    }
    next?.()
  }
}

/** countFetch: see index.d.ts. @param {Client} client @param {any} options @param {(request: any, ...more: any[]) => any} handler */
function countFetch (client, options, handler) {
  return async (/** @type {any} */ request, /** @type {any[]} */ ...more) => {
    const response = await handler(request, ...more)
    await count(client, options, request, response)
    return response
  }
}

module.exports = { countRequests, countFetch }
