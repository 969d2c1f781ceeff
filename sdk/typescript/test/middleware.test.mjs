import test from 'node:test'
import assert from 'node:assert/strict'
import { createServer } from 'node:http'
import { countFetch, countRequests, withTokens } from '../index.mjs'
import { newClient, startService, until } from './service.mjs'

const counted = (service) => [...service.counted.values()].map(({ timestamp, ...event }) => event)

async function open (t) {
  const service = await startService(t)
  return [newClient(t, service, { memory: true }), service]
}

test('countRequests counts the requests of an application', async (t) => {
  const [client, service] = await open(t)
  const middleware = countRequests(client, {
    feature: 'api_calls', amount: (req) => BigInt(req.headers['x-units'] ?? 1), metadata: (req, res) => ({ path: req.url, status: res.statusCode }), eventId: (req) => req.headers['x-request-id'], count: (req, res) => res.statusCode < 400
  })
  const app = createServer((req, res) => middleware(req, res, () => { res.statusCode = req.url === '/missing' ? 404 : 200; res.end('ok') }))
  await new Promise((resolve) => app.listen(0, '127.0.0.1', resolve))
  t.after(() => app.close())
  const url = `http://127.0.0.1:${app.address().port}`
  for (const [path, units, id] of [['/a', '1', 'r1'], ['/missing', '1', 'r2'], ['/b', '5', 'r3']]) await (await fetch(url + path, { headers: { 'x-units': units, 'x-request-id': id, connection: 'close' } })).text()
  await until(() => service.counted.size === 2)
  assert.deepEqual(counted(service), [{ amount: 1, eventId: 'r1', feature: 'api_calls', metadata: { path: '/a', status: 200 } }, { amount: 5, eventId: 'r3', feature: 'api_calls', metadata: { path: '/b', status: 200 } }])
  await (await fetch(url, { headers: { 'x-units': '0', connection: 'close' } })).text()
  await until(() => client.seen.errors.length === 1)
  assert.equal(client.seen.errors[0].code, 'amount_invalid', 'a fault of the application is reported, and its answer is sent')
})

test('countRequests counts a request once, also if its client leaves', async (t) => {
  const [client, service] = await open(t)
  let left
  const count = countRequests(client, { feature: 'api_calls' })
  const app = createServer((req, res) => count(req, res, () => req.url === '/stream' ? res.write('a part', () => left()) : res.end('ok')))
  await new Promise((resolve) => app.listen(0, '127.0.0.1', resolve))
  t.after(() => app.close())
  const url = `http://127.0.0.1:${app.address().port}`
  await (await fetch(url, { headers: { connection: 'close' } })).text()
  const leaving = new AbortController()
  left = () => leaving.abort()
  await assert.rejects(async () => (await fetch(url + '/stream', { signal: leaving.signal })).text())
  await until(() => service.counted.size === 2)
  await client.flush()
  assert.equal(client.stats().accepted, 2)
})

test('countFetch counts the requests of a handler of fetch', async (t) => {
  const [client, service] = await open(t)
  const handler = countFetch(client, { feature: 'api_calls' }, async (request, status) => new Response('ok', { status }))
  assert.equal(await (await handler(new Request('http://x/'), 200)).text(), 'ok')
  assert.equal((await handler(new Request('http://x/'), 500)).status, 500)
  await client.flush()
  assert.equal(service.counted.size, 1)
})

const features = { input: 'llm.input', output: 'llm.output' }
const tokens = (service) => counted(service).map(({ eventId, feature, amount, metadata }) => [eventId, feature, amount, metadata])

test('withTokens records the tokens of OpenAI and Anthropic', async (t) => {
  for (const [answer, input, output] of [
    [{ id: 'chatcmpl-1', usage: { prompt_tokens: 12, completion_tokens: 34, total_tokens: 46, prompt_tokens_details: { cached_tokens: 5 } } }, 12, 34],
    [{ id: 'resp_1', usage: { input_tokens: 12, output_tokens: 34, input_tokens_details: { cached_tokens: 5 } } }, 12, 34],
    [{ id: 'msg_1', usage: { input_tokens: 12, cache_creation_input_tokens: 100, cache_read_input_tokens: 1000, output_tokens: 34 } }, 1112, 34]
  ]) {
    const [client, service] = await open(t)
    const create = withTokens(client, { ...features, metadata: ({ model }) => ({ model }) }, async (request) => answer)
    assert.equal(await create({ model: 'large' }), answer)
    await client.flush()
    assert.deepEqual(tokens(service), [[`${answer.id}-input`, 'llm.input', input, { model: 'large' }], [`${answer.id}-output`, 'llm.output', output, { model: 'large' }]])
  }
})

async function * stream (chunks) { yield * chunks }

test('withTokens records the tokens of streams at their end', async (t) => {
  for (const chunks of [
    [{ id: 'c1', choices: [{}] }, { id: 'c1', usage: null }, { id: 'c1', choices: [], usage: { prompt_tokens: 3, completion_tokens: 9 } }],
    [{ type: 'message_start', message: { id: 'c1', usage: { input_tokens: 3, output_tokens: 1 } } }, { type: 'content_block_delta' }, { type: 'message_delta', usage: { output_tokens: 9 } }],
    [{ type: 'response.created', response: { id: 'c1', usage: null } }, { type: 'response.completed', response: { id: 'c1', usage: { input_tokens: 3, output_tokens: 9 } } }]
  ]) {
    const [client, service] = await open(t)
    const answer = await withTokens(client, features, async () => Object.assign(stream(chunks), { controller: 'of the SDK' }))()
    assert.equal(answer.controller, 'of the SDK')
    const seen = []
    for await (const chunk of answer) seen.push(chunk)
    assert.deepEqual(seen, chunks)
    await client.flush()
    assert.deepEqual(tokens(service).map((row) => row.slice(0, 3)), [['c1-input', 'llm.input', 3], ['c1-output', 'llm.output', 9]])
  }
})

test('withTokens records what it knows of a stream that is left', async (t) => {
  const [client, service] = await open(t)
  const answer = await withTokens(client, features, async () => stream([{ message: { id: 'c1', usage: { input_tokens: 3, output_tokens: 1 } } }, {}, {}]))()
  for await (const _ of answer) break
  await client.flush()
  assert.deepEqual(tokens(service).map((row) => row.slice(0, 3)), [['c1-input', 'llm.input', 3], ['c1-output', 'llm.output', 1]])
})

test('withTokens returns the answer although its tokens cannot be recorded', async (t) => {
  const [client] = await open(t)
  assert.deepEqual(await withTokens(client, features, async () => ({ text: 'hi' }))(), { text: 'hi' })
  assert.equal(client.seen.errors[0].code, 'usage_missing')
  assert.deepEqual(await withTokens(client, { input: 'BAD' }, async () => ({ usage: { input_tokens: 1 } }))(), { usage: { input_tokens: 1 } })
  assert.equal(client.seen.errors[1].code, 'feature_invalid')
  await assert.rejects(withTokens(client, features, async () => { throw new Error('overloaded') })(), { message: 'overloaded' })
})
