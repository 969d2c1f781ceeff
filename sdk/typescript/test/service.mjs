// A service for tests: it counts each event once, and answers otherwise where a test asks for it.
import { createServer } from 'node:http'
import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { gunzipSync } from 'node:zlib'
import { Meterplex } from '../index.mjs'

export const key = 'mp_test_secret'

/** startService: answer(request) returns {status, headers, body}, 'cut' for none, or undefined for the service's own answer. */
export async function startService (t, answer = () => undefined) {
  const service = { answer, requests: [], counted: new Map(), url: '' }
  const server = createServer((req, res) => {
    const parts = []
    req.on('data', (part) => parts.push(part))
    req.on('end', async () => {
      const bytes = Buffer.concat(parts)
      const text = req.headers['content-encoding'] === 'gzip' ? gunzipSync(bytes).toString() : bytes.toString()
      const request = { method: req.method, url: req.url, headers: req.headers, text, bytes, at: Date.now(), events: req.url.endsWith('/usage/events') && text ? JSON.parse(text).events : undefined }
      service.requests.push(request)
      const given = await service.answer(request, service.requests.length)
      if (given === 'cut') return req.socket.destroy()
      const { status, headers = { 'content-type': 'application/json' }, body } = given ?? service.verdicts(request)
      res.writeHead(status, headers).end(typeof body === 'string' ? body : JSON.stringify(body))
    })
  })
  service.verdicts = ({ events }) => {
    const verdicts = events.map((e) => {
      const before = service.counted.get(e.eventId)
      if (before === undefined) service.counted.set(e.eventId, e)
      return { eventId: e.eventId, status: before === undefined ? 'accepted' : 'duplicate', position: '17-1' }
    })
    return { status: 202, body: { accepted: verdicts.length, events: verdicts } }
  }
  await new Promise((resolve) => server.listen(0, '127.0.0.1', resolve))
  service.url = `http://127.0.0.1:${server.address().port}`
  service.server = server
  t.after(() => { server.closeAllConnections(); server.close() })
  return service
}

export const problem = (status, code, more = {}) => ({ status, headers: { 'content-type': 'application/problem+json', ...more.headers }, body: { status, code, detail: `the detail of ${code}`, ...more.body } })

/** newFolder returns a folder that is removed after the test. */
export function newFolder (t) {
  const folder = mkdtempSync(join(tmpdir(), 'meterplex-'))
  t.after(() => rmSync(folder, { recursive: true, force: true }))
  return folder
}

/** newClient returns a client whose waits are short, and which keeps what its handlers get. */
export function newClient (t, service, options = {}) {
  const seen = { verdicts: [], errors: [] }
  const client = new Meterplex({
    url: service.url, key, maxAgeMs: 5, retryMs: 40, keyRetryMs: 60_000, ...(options.memory ? {} : { dir: newFolder(t) }),
    onVerdict: (event, verdict) => { seen.verdicts.push({ event, ...verdict }) }, onError: (err) => { seen.errors.push(err) }, ...options
  })
  t.after(() => client.close({ deadlineMs: 1 }))
  return Object.assign(client, { seen })
}

let last = 0
export const newEvent = (more) => ({ eventId: `evt_${++last}`, feature: 'api_calls', amount: 1n, ...more })

/** until waits for a condition. */
export async function until (condition, what = 'condition') {
  for (const end = Date.now() + 20_000; !await condition();) {
    if (Date.now() > end) throw new Error(`waited 20 s for: ${what}`)
    await new Promise((resolve) => setTimeout(resolve, 2))
  }
}
