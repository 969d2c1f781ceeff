import test from 'node:test'
import assert from 'node:assert/strict'
import { readFileSync } from 'node:fs'
import { newClient, newEvent, problem, startService, until } from './service.mjs'

const vectors = JSON.parse(readFileSync(new URL('../../testdata/vectors.json', import.meta.url), 'utf8'))
const json = (body, status = 200) => ({ status, headers: { 'content-type': 'application/json' }, body })
const page = { status: 200, headers: { 'content-type': 'text/html' }, body: '<html>Sign in</html>' }
const month = '2999-12-01T00:00:00Z'
const checked = (more) => json({ allowed: true, feature: 'tokens', type: 'QUOTA', limit: '1000', used: '990', held: '0', remaining: '10', limitBehavior: 'HARD', resetAt: month, asOfPosition: '17-1', ...more })

/** open returns a client of a service that answers in turn; the last answer stays. */
async function open (t, answers, options) {
  t.mock.method(Math, 'random', () => 0.01) // short waits
  const service = await startService(t, (request, n) => {
    const answer = answers[Math.min(n, answers.length) - 1]
    return typeof answer === 'function' ? answer(request) : answer
  })
  return [newClient(t, service, { memory: true, ...options }), service]
}

test('check answers what the service says, exactly', async (t) => {
  const [client, service] = await open(t, [checked({ remaining: '9007199254740993' }), json({ allowed: false, feature: 'sso', reason: 'feature_not_found', asOfPosition: '17-1' })])
  const got = await client.check('tokens', 5n)
  assert.deepEqual([got.allowed, got.source, got.remaining, got.limit, got.asOfPosition], [true, 'service', 9007199254740993n, 1000n, '17-1'])
  assert.deepEqual([(await client.check('sso')).reason], ['feature_not_found'])
  assert.deepEqual(service.requests.map((r) => r.url), ['/api/v1/entitlements/tokens/check?amount=5', '/api/v1/entitlements/sso/check?amount=1'])
  assert.equal(service.requests[0].headers.accept, 'application/json; amounts=string')
  await client.check('tokens', 1, { minPosition: '17-9', wait: 3 })
  assert.match(service.requests[2].url, /minPosition=17-9/)
  assert.equal(service.requests[2].headers.prefer, 'wait=3')
})

test('check without an answer uses the last one for its rest, then the policy', async (t) => {
  const answers = [checked()]
  const [client] = await open(t, answers)
  assert.equal((await client.check('tokens', 3)).source, 'service')
  for (const answer of ['cut', page, problem(503, 'unavailable'), json({}), json({ allowed: 'true' }), { ...page, status: 302 }]) {
    answers[0] = answer
    const got = await client.check('tokens', 1)
    assert.deepEqual([got.allowed, got.source], [true, 'cache'], JSON.stringify(answer))
  }
  const rest = async (amount, options) => { const { allowed, source, remaining } = await client.check('tokens', amount, options); return [allowed, source, remaining] }
  assert.deepEqual(await rest(5), [false, 'policy', undefined], '4 of 10 remain')
  assert.deepEqual(await rest(4), [true, 'cache', 4n])
  assert.deepEqual(await rest(1), [false, 'policy', undefined])
  assert.deepEqual(await rest(1, { policy: 'allow' }), [true, 'policy', undefined])
  assert.equal((await client.check('other')).source, 'policy')
})

test('a cached answer has its bounds', async (t) => {
  for (const [answer, options, source, allowed] of [
    [checked({ resetAt: '2020-01-01T00:00:00Z' }), {}, 'policy', false], [checked(), { maxStaleMs: 1 }, 'policy', false], [checked({ resetAt: null, remaining: null, limit: null }), {}, 'cache', true],
    [checked({ limitBehavior: 'SOFT', remaining: '0' }), {}, 'cache', true],
    [json({ allowed: false, feature: 'tokens', reason: 'not_entitled' }), { policy: 'allow' }, 'cache', false]
  ]) {
    const answers = [answer]
    const [client] = await open(t, answers, options)
    await client.check('tokens')
    answers[0] = 'cut'
    await new Promise((resolve) => setTimeout(resolve, 5))
    const got = await client.check('tokens')
    assert.deepEqual([got.source, got.allowed], [source, allowed])
  }
})

test('the time that the service waits is added to the time limits', async (t) => {
  const slow = async (answer) => { await new Promise((resolve) => setTimeout(resolve, 60)); return json(answer) }
  const [client] = await open(t, [({ url }) => slow(url.includes('/check') ? { allowed: true } : { data: [] })], { checkMs: 20, readMs: 20, timeoutMs: 20 })
  assert.equal((await client.check('tokens', 1, { minPosition: '17-1', wait: 30 })).source, 'service')
  assert.deepEqual(await client.entitlements({ minPosition: '17-1', wait: 30 }).toArray(), [])
})

test('check has a time limit, and a refusal of the request is an error', async (t) => {
  const [client] = await open(t, [() => new Promise(() => {})], { checkMs: 30, policy: 'allow' })
  assert.deepEqual(await client.check('tokens'), { allowed: true, feature: 'tokens', source: 'policy' })
  await assert.rejects(client.check('tokens', 1, { deadlineMs: 5000, signal: AbortSignal.timeout(10) }), { name: 'TimeoutError' })
  const [refused] = await open(t, [problem(403, 'forbidden')])
  await assert.rejects(refused.check('tokens'), { code: 'forbidden', status: 403 })
  await assert.rejects(refused.check('TOKENS'), { code: 'feature_invalid' })
})

const consumed = ({ text }) => json({ allowed: true, feature: 'tokens', eventId: JSON.parse(text).eventId, amount: '3', used: '7', remaining: '993', position: '17-2' })

test('consume is repeated with the same bytes until it is answered by the service', async (t) => {
  const [client, service] = await open(t, ['cut', page, json({}), json([]), problem(503, 'unavailable'), problem(429, 'rate_limited'), { ...page, status: 404 }, consumed])
  const got = await client.consume('tokens', 3, { metadata: { model: 'large' } })
  assert.deepEqual([got.amount, got.remaining, got.allowed], [3n, 993n, true])
  assert.match(got.eventId, /^[0-9a-f-]{36}$/)
  assert.equal(service.requests.length, 8)
  assert.deepEqual(service.requests.map((r) => r.text), Array(8).fill(JSON.stringify({ eventId: got.eventId, amount: 3, metadata: { model: 'large' } })))
})

test('a refusal of consume is an error with the figures', async (t) => {
  const [client] = await open(t, [problem(409, 'quota_exceeded', { body: { remaining: '100', limit: '9007199254740993', traceId: 't1', errors: [{ pointer: '/amount', code: 'quota_exceeded' }] } })])
  await assert.rejects(client.consume('tokens', 200n), (err) => err.code === 'quota_exceeded' && err.status === 409 && err.detail === 'the detail of quota_exceeded' && err.traceId === 't1' && err.errors.length === 1 &&
    err.problem.remaining === 100n && err.problem.limit === 9007199254740993n && err.remedy.startsWith('Ask for less'))
  for (const amount of [0, -1, 1.5, '5', 2n ** 53n]) await assert.rejects(client.consume('tokens', amount), { code: 'amount_invalid' })
  await assert.rejects(client.consume('tokens', 1, { metadata: { a: NaN } }), { code: 'metadata_invalid' })
})

test('after the deadline the outcome is unknown, and the error has the id', async (t) => {
  const [client] = await open(t, ['cut'])
  await assert.rejects(client.consume('tokens', 1, { eventId: 'mine', deadlineMs: 100 }), (err) => err.code === 'unknown_outcome' && err.id === 'mine' && /mine/.test(err.detail))
  await assert.rejects(client.reserve('tokens', 1, { deadlineMs: 100, signal: AbortSignal.timeout(50) }), (err) => err.code === 'unknown_outcome' && err.id !== undefined)
  await assert.rejects(client.consume('tokens', 1, { signal: AbortSignal.abort() }), { name: 'AbortError' })
  const [limited] = await open(t, [problem(429, 'rate_limited', { headers: { 'retry-after': '60' } })])
  await assert.rejects(limited.consume('tokens', 1), { code: 'rate_limited' }, 'a refusal is known')
})

/** accounts answers requests for reservations. */
function accounts () {
  const seen = []
  return Object.assign(({ method, url, text }) => {
    const path = url.replace('/api/v1/entitlements/tokens/reservations', '')
    const body = text ? JSON.parse(text) : {}
    seen.push([method, path, body])
    const reservationId = body.reservationId ?? decodeURIComponent(path.split('/')[1])
    if (path === '') return json({ reservationId, state: 'HELD', amount: String(body.amount) }, 201)
    return json({ reservationId, state: method === 'DELETE' ? 'RELEASED' : path.endsWith('commit') ? 'COMMITTED' : 'HELD', eventId: body.eventId, amount: String(body.amount), released: '2' })
  }, { seen })
}

test('reservations are held, extended, committed and released', async (t) => {
  const service = accounts()
  const [client] = await open(t, [service])
  const { reservationId, amount } = await client.reserve('tokens', 10n, { ttlSeconds: 60 })
  assert.equal(amount, 10n)
  await client.extend('tokens', reservationId, 120)
  assert.equal((await client.commit('tokens', reservationId, 8)).released, 2n)
  await client.commit('tokens', 'a/b', 8, { eventId: 'e', overage: 'record' })
  await client.release('tokens', 'x'.repeat(255))
  assert.deepEqual(service.seen.slice(0, 4), [['POST', '', { reservationId, amount: 10, ttlSeconds: 60 }], ['POST', `/${reservationId}/extend`, { ttlSeconds: 120 }],
    ['POST', `/${reservationId}/commit`, { eventId: `${reservationId}-usage`, amount: 8 }], ['POST', '/a%2Fb/commit', { eventId: 'e', amount: 8, overage: 'record' }]])
  for (const { reservationId, eventId } of vectors.usageIds) {
    await client.commit('tokens', reservationId, 1)
    assert.equal(service.seen.at(-1)[2].eventId, eventId)
  }
  await assert.rejects(client.release('tokens', 'has space'), { code: 'invalid_argument' })
})

test('a hold of an id whose reservation has ended is an error', async (t) => {
  const [client] = await open(t, [json({ reservationId: 'r1', state: 'EXPIRED' })])
  await assert.rejects(client.reserve('tokens', 1, { reservationId: 'r1' }), (err) => err.code === 'reservation_ended' && err.problem.state === 'EXPIRED')
})

test('withReservation commits what the function reports, or releases', async (t) => {
  const service = accounts()
  const [client] = await open(t, [service])
  const { settled, value } = await client.withReservation('tokens', 100, async (hold) => ({ amount: 40n, value: hold.reservationId }))
  assert.deepEqual([settled.state, settled.amount, value], ['COMMITTED', 40n, settled.reservationId])
  assert.deepEqual(service.seen[1], ['POST', `/${value}/commit`, { eventId: `${value}-usage`, amount: 40, overage: 'record' }])
  assert.equal((await client.withReservation('tokens', 100, () => 0)).settled.state, 'RELEASED')
  await assert.rejects(client.withReservation('tokens', 100, () => { throw new Error('no answer of the model') }, { reservationId: 'r2' }), { message: 'no answer of the model' })
  assert.deepEqual(service.seen.at(-1), ['DELETE', '/r2', {}])
  await assert.rejects(client.withReservation('tokens', 100, () => 'many'), { code: 'amount_invalid' })
  assert.equal(service.seen.at(-1)[0], 'DELETE')
})

test('a hold is extended while the function runs', async (t) => {
  const service = accounts()
  const [client] = await open(t, [service])
  await client.withReservation('tokens', 100, async () => { await until(() => service.seen.length > 1); return 1 }, { reservationId: 'r1', ttlSeconds: 0.03 })
  assert.deepEqual(service.seen[1], ['POST', '/r1/extend', { ttlSeconds: 0.03 }])
  assert.equal(service.seen.at(-1)[1], '/r1/commit')
})

test('a hold whose outcome is unknown is released', async (t) => {
  const given = new AbortController()
  const answer = ({ method, url }) => {
    if (method === 'DELETE') return json({ reservationId: url.split('/').at(-1), state: 'RELEASED' })
    given.abort() // the caller gives up
    return 'cut'
  }
  const [client, service] = await open(t, [answer])
  await assert.rejects(client.withReservation('tokens', 100, () => assert.fail('called'), { signal: given.signal }), { code: 'unknown_outcome' })
  assert.equal(service.requests.at(-1).method, 'DELETE')
})

test('lists are iterators over all pages', async (t) => {
  const pages = { '': { data: [{ amount: '1' }, { amount: '2' }], nextCursor: 'c 2', asOfPosition: '17-1' }, 'c 2': { data: [{ amount: '9007199254740993', later: ['x'] }], nextCursor: null, asOfPosition: '17-2' } }
  const [client, service] = await open(t, [({ url }) => json(pages[new URL(url, 'http://x').searchParams.get('cursor') ?? ''])])
  const list = client.aggregates({ feature: 'tokens', limit: 2, minPosition: '17-1', wait: 5 })
  const amounts = []
  for await (const row of list) amounts.push(row.amount)
  assert.deepEqual(amounts, [1n, 2n, 9007199254740993n])
  assert.equal(list.page.asOfPosition, '17-2')
  assert.equal(service.requests[1].url, '/api/v1/usage/aggregates?feature=tokens&limit=2&minPosition=17-1&cursor=c+2')
  assert.equal(service.requests[0].headers.prefer, 'wait=5')
  for (const [read, url] of [[() => client.events({ status: 'REJECTED', from: new Date(0) }), '/api/v1/usage/events?status=REJECTED&from=1970-01-01T00%3A00%3A00.000Z'],
    [() => client.usage({ feature: 'tokens', from: 'a', to: 'b', groupBy: ['metadata.a', 'metadata.b'] }), '/api/v1/usage?feature=tokens&from=a&to=b&groupBy=metadata.a&groupBy=metadata.b'],
    [() => client.entitlements(), '/api/v1/entitlements'], [() => client.reservations('tokens', { state: 'HELD' }), '/api/v1/entitlements/tokens/reservations?state=HELD']]) {
    const before = service.requests.length
    assert.equal((await read().toArray()).length, 3)
    assert.equal(service.requests[before].url, url)
  }
})

test('reads are repeated until the service answers, and keep members that they do not know', async (t) => {
  const receipt = { eventId: 'a b', status: 'LATER_STATUS', effectiveAmount: '3', payload: { amount: 3, metadata: { amount: '5' } }, later: { x: 1 } }
  const [client, service] = await open(t, ['cut', page, json({}), problem(503, 'overloaded'), json(receipt)])
  assert.deepEqual(await client.receipt('a b', { minPosition: '17-1' }), { ...receipt, effectiveAmount: 3n })
  assert.equal(service.requests[0].url, '/api/v1/usage/events/a%20b?minPosition=17-1')
  assert.equal(service.requests[0].headers.prefer, undefined)
  const [behind, asked] = await open(t, [problem(503, 'projection_behind')])
  await assert.rejects(behind.receipt('e', { minPosition: '17-1', wait: 1.5 }), { code: 'projection_behind', status: 503 })
  await assert.rejects(behind.check('tokens', 1, { minPosition: '17-1' }), { code: 'projection_behind', status: 503 })
  assert.deepEqual(asked.requests.map((r) => r.headers.prefer), ['wait=2', undefined], 'the service has waited as long as it was asked')
  const [busy] = await open(t, [problem(503, 'overloaded', { headers: { 'retry-after': '60' } })])
  await assert.rejects(busy.receipt('e'), { code: 'overloaded', status: 503 })
  const [gone] = await open(t, [problem(404, 'event_not_found')])
  await assert.rejects(gone.receipt('e'), { code: 'event_not_found' })
  const [off] = await open(t, ['cut'])
  await assert.rejects(off.entitlements({ deadlineMs: 50 }).toArray(), { code: 'unavailable' })
})

test('the queue goes on while limits are asked', async (t) => {
  const [client, service] = await open(t, [(request) => request.url.endsWith('/usage/events') ? service.verdicts(request) : consumed(request)])
  await Promise.all([client.record(newEvent()), client.consume('tokens', 3)])
  await until(() => client.stats().accepted === 1)
})
