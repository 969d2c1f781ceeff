'use strict'
// What the SDK needs of browsers and edge runtimes, which have no files: fetch, and standards of the web.
const { invalid } = require('./errors.cjs')
const { timerMs } = require('./time.cjs')

const MAX_ANSWER = 64 << 20

/** @param {string} _ @param {unknown} [ca] */
function newTransport (_, ca) {
  if (ca !== undefined) throw invalid('ca needs Node')
  return { close () {} }
}

/** request sends one request. It follows no redirect. @param {import('./node.cjs').Request} options @returns {Promise<import('./node.cjs').RawAnswer>} */
async function request ({ url, method, headers, body, timeoutMs, signal }) {
  const timeout = AbortSignal.timeout(timerMs(timeoutMs))
  const response = await fetch(url, { method, headers, body: /** @type {any} */ (body), redirect: 'manual', signal: signal ? AbortSignal.any([signal, timeout]) : timeout })
  const decoder = new TextDecoder()
  let text = ''
  let size = 0
  for (const reader = response.body?.getReader(); reader;) {
    const { done, value } = await reader.read()
    if (done) break
    if ((size += value.length) > MAX_ANSWER) {
      await reader.cancel()
      throw new Error(`the answer has more than ${MAX_ANSWER} bytes`)
    }
    text += decoder.decode(value, { stream: true })
  }
  return { status: response.status, headers: Object.fromEntries(response.headers), text: text + decoder.decode() }
}

/** @param {string} text @returns {Promise<Uint8Array>} */
async function gzip (text) {
  const stream = /** @type {ReadableStream} */ (new Response(text).body).pipeThrough(new CompressionStream('gzip'))
  return new Uint8Array(await new Response(stream).arrayBuffer())
}

/** sha256 is that of FIPS 180-4: the one of WebCrypto is asynchronous. @param {string} text */
function sha256 (text) {
  const bytes = new TextEncoder().encode(text)
  const padded = new DataView(new ArrayBuffer((bytes.length + 72) >> 6 << 6))
  bytes.forEach((b, i) => padded.setUint8(i, b))
  padded.setUint8(bytes.length, 0x80)
  padded.setBigUint64(padded.byteLength - 8, BigInt(bytes.length) * 8n)
  const hash = primes(8).map((p) => fraction(Math.sqrt(p)))
  const k = primes(64).map((p) => fraction(Math.cbrt(p)))
  const w = new Int32Array(64)
  for (let at = 0; at < padded.byteLength; at += 64) {
    let [a, b, c, d, e, f, g, h] = hash
    for (let i = 0; i < 64; i++) {
      if (i < 16) w[i] = padded.getInt32(at + 4 * i)
      else w[i] = w[i - 16] + (rotate(w[i - 15], 7) ^ rotate(w[i - 15], 18) ^ w[i - 15] >>> 3) + w[i - 7] + (rotate(w[i - 2], 17) ^ rotate(w[i - 2], 19) ^ w[i - 2] >>> 10)
      const one = h + (rotate(e, 6) ^ rotate(e, 11) ^ rotate(e, 25)) + (e & f ^ ~e & g) + k[i] + w[i] | 0
      const two = (rotate(a, 2) ^ rotate(a, 13) ^ rotate(a, 22)) + (a & b ^ a & c ^ b & c)
      ;[h, g, f, e, d, c, b, a] = [g, f, e, d + one | 0, c, b, a, one + two | 0]
    }
    for (const [i, word] of [a, b, c, d, e, f, g, h].entries()) hash[i] = hash[i] + word | 0
  }
  return hash.map((word) => (word >>> 0).toString(16).padStart(8, '0')).join('')
}

/** @param {number} n */
function primes (n) {
  /** @type {number[]} */
  const found = []
  for (let i = 2; found.length < n; i++) if (found.every((p) => i % p !== 0)) found.push(i)
  return found
}

/** @param {number} x */
const fraction = (x) => (x - Math.floor(x)) * 2 ** 32 | 0
/** @param {number} x @param {number} bits */
const rotate = (x, bits) => x >>> bits | x << 32 - bits

/** @returns {never} */
const newFileQueue = () => { throw invalid('there are no files here: choose memory: true') }

module.exports = { newTransport, request, sha256, gzip, newFileQueue }
