import test from 'node:test'
import assert from 'node:assert/strict'
import { mkdirSync, readFileSync, symlinkSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { pathToFileURL } from 'node:url'
import { key, newFolder, problem, startService } from './service.mjs'

const here = new URL('..', import.meta.url).pathname
const text = readFileSync(join(here, 'README.md'), 'utf8')
const blocks = [...text.matchAll(/^```(\w*)\n([^]*?)^```$/gm)]

/** answer serves the requests of the README. */
const answer = (service) => ({ method, url, text }) => {
  const json = (body) => ({ status: 200, headers: { 'content-type': 'application/json' }, body })
  const body = text && !url.endsWith('/usage/events') ? JSON.parse(text) : {}
  if (url.includes('/check')) return json({ allowed: true, feature: 'tokens', remaining: '1000' })
  if (url.endsWith('/consume') && body.amount === 1_000_000) return problem(409, 'quota_exceeded', { body: { remaining: '7' } })
  if (url.endsWith('/consume')) return json({ ...body, allowed: true, amount: '100' })
  if (url.endsWith('/reservations')) return json({ ...body, state: 'HELD', amount: '4000' })
  if (url.endsWith('/commit')) { service.committed = body.amount; return json({ eventId: body.eventId, reservationId: url.split('/').at(-2), state: 'COMMITTED', amount: '46' }) }
  if (url.includes('/aggregates')) return json({ data: [{ feature: 'api_calls', periodKey: '2026-11', amount: '9007199254740993' }], nextCursor: null })
  if (method === 'GET') return json({ eventId: url.split('/').at(-1), status: 'AGGREGATED', effectiveAmount: '1' })
}

test('every block of the README runs', async (t) => {
  const service = await startService(t)
  service.answer = answer(service)
  const folder = newFolder(t)
  mkdirSync(join(folder, 'node_modules'))
  symlinkSync(here, join(folder, 'node_modules', 'meterplex'))
  const said = []
  t.mock.method(console, 'log', (...args) => { said.push(args) })
  process.chdir(folder)
  t.after(() => process.chdir(here))
  Object.assign(process.env, { METERPLEX_URL: service.url, METERPLEX_KEY: key })
  const preamble = `import { Meterplex } from 'meterplex'
    const meterplex = new Meterplex({ url: process.env.METERPLEX_URL, key: process.env.METERPLEX_KEY, memory: true, maxAgeMs: 1 })
    const openai = { chat: { completions: { create: async () => ({ id: 'chatcmpl-1', usage: { prompt_tokens: 12, completion_tokens: 34, total_tokens: 46 } }) } } }\n`
  assert.ok(blocks.length >= 8)
  for (const [i, [, language, code]] of blocks.entries()) {
    assert.equal(language, 'js')
    const file = join(folder, `block-${i}.mjs`)
    writeFileSync(file, i === 0 ? code : preamble + code + '\nawait meterplex.close()')
    await import(pathToFileURL(file))
  }
  assert.deepEqual(said[0], [{ remaining: 0, oldestMs: 0 }])
  assert.ok(said.some((line) => line.join(' ') === 'api_calls 2026-11 9007199254740993') && said.some((line) => line[1] === 7n))
  assert.equal(service.committed, 46)
  assert.deepEqual([...service.counted.values()].map((e) => [e.feature, e.amount]), [['api_calls', 1], ['storage_mb', 1500], ['api_calls', 1], ['input_tokens', 12], ['output_tokens', 34]])
})

test('the README is short', () => { assert.ok(text.split('\n').length <= 121) })
