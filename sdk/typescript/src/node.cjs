'use strict'
// What the SDK needs of Node. web.cjs has the same for browsers and edge runtimes.
const http = require('node:http')
const https = require('node:https')
const zlib = require('node:zlib')
const { createHash } = require('node:crypto')
const { promisify } = require('node:util')
const { timerMs } = require('./time.cjs')

/** @typedef {{status: number, headers: Record<string, string | undefined>, text: string}} RawAnswer */
/** background: the request keeps the process not alive. @typedef {{url: string, method: string, headers: Record<string, string>, body?: Uint8Array | string, timeoutMs: number, signal?: AbortSignal, background?: boolean, agent?: any}} Request */

const MAX_ANSWER = 64 << 20

/** newTransport returns the connections of a client. @param {string} url @param {string | Buffer | (string | Buffer)[]} [ca] */
function newTransport (url, ca) {
  const agent = url.startsWith('https:') ? new https.Agent({ keepAlive: true, ca }) : new http.Agent({ keepAlive: true })
  return { agent, close: () => agent.destroy() }
}

/** request sends one request. It follows no redirect. @param {Request} options @returns {Promise<RawAnswer>} */
async function request (options) {
  try {
    return await once(options)
  } catch (err) {
    if (!(/** @type {any} */ (err).stale)) throw err
    return await once(options) // the server had closed the idle connection
  }
}

/** @param {Request} options @returns {Promise<RawAnswer>} */
function once ({ url, method, headers, body, timeoutMs, signal, background, agent }) {
  return new Promise((resolve, reject) => {
    const length = body === undefined ? {} : { 'content-length': String(Buffer.byteLength(body)) }
    const req = (url.startsWith('https:') ? https : http).request(url, { method, agent, headers: { ...headers, ...length }, signal })
    const timer = setTimeout(() => req.destroy(new Error(`no answer within ${timeoutMs} ms`)), timerMs(timeoutMs))
    if (background) {
      timer.unref()
      req.on('socket', (socket) => socket.unref())
    }
    req.on('close', () => clearTimeout(timer))
    req.on('error', (err) => reject(Object.assign(err, { stale: req.reusedSocket && /** @type {any} */ (err).code === 'ECONNRESET' })))
    req.on('response', (res) => {
      /** @type {Buffer[]} */
      const parts = []
      let size = 0
      res.on('data', (part) => {
        parts.push(part)
        if ((size += part.length) > MAX_ANSWER) req.destroy(new Error(`the answer has more than ${MAX_ANSWER} bytes`))
      })
      res.on('error', reject)
      res.on('end', () => resolve({ status: res.statusCode ?? 0, headers: /** @type {any} */ (res.headers), text: Buffer.concat(parts).toString() }))
    })
    req.end(body)
  })
}

/** @param {string} text */
const sha256 = (text) => createHash('sha256').update(text).digest('hex')
/** @type {(text: string) => Promise<Uint8Array>} */
const gzip = promisify(zlib.gzip)
/** @param {any} options */
const newFileQueue = (options) => new (require('./files.cjs').FileQueue)(options)

module.exports = { newTransport, request, sha256, gzip, newFileQueue }
