import test from 'node:test'
import assert from 'node:assert/strict'
import { readdirSync, readFileSync, existsSync, mkdirSync, writeFileSync, rmSync } from 'node:fs'
import { join } from 'node:path'
import { createRequire } from 'node:module'
import { inspect } from 'node:util'
import { key, newClient, newEvent, problem, startService, until } from './service.mjs'

const { Answer } = createRequire(import.meta.url)('../src/http.cjs')
const jsonType = { 'content-type': 'application/json' }
const page = { status: 200, headers: { 'content-type': 'text/html' }, body: '<html>Sign in</html>' }
const files = (client, folder) => existsSync(join(client.options.dir, folder)) ? readdirSync(join(client.options.dir, folder)).sort() : []

test('a batch is gzip, canonical, and has its key', async (t) => {
  const service = await startService(t)
  const client = newClient(t, service)
  const event = newEvent({ timestamp: '2026-11-29T11:00:00+01:00', metadata: { b: 1, a: 'ü' } })
  await client.record(event)
  assert.deepEqual(await client.flush(), { remaining: 0, oldestMs: 0 })
  const [{ method, url, headers, text }] = service.requests
  assert.equal(`${method} ${url}`, 'POST /api/v1/usage/events')
  assert.equal(text, `{"events":[{"amount":1,"eventId":"${event.eventId}","feature":"api_calls","metadata":{"a":"ü","b":1},"timestamp":"2026-11-29T10:00:00Z"}]}`)
  assert.equal(headers.authorization, `Bearer ${key}`)
  assert.equal(headers['content-type'], 'application/json')
  assert.equal(headers['content-encoding'], 'gzip')
  assert.match(headers['user-agent'], /^meterplex-typescript\/\d+\.\d+\.\d+$/)
  assert.deepEqual(client.seen.verdicts.map(({ event, status, position }) => [event.eventId, event.amount, status, position]), [[event.eventId, 1n, 'accepted', '17-1']])
  assert.deepEqual(client.stats(), { waiting: 0, waitingBytes: 0, oldestMs: 0, accepted: 1, duplicates: 0, conflicts: 0, rejected: 0, damaged: 0, lastError: null })
})

test('batches are bounded by count, bytes and age', async (t) => {
  const service = await startService(t)
  const slow = newClient(t, service, { maxEvents: 3, maxBytes: 600, maxAgeMs: 3_600_000 })
  await slow.recordMany([newEvent(), newEvent()])
  await new Promise((resolve) => setTimeout(resolve, 20))
  assert.equal(service.requests.length, 0, 'a young batch waits')
  await slow.record(newEvent())
  await until(() => slow.stats().accepted === 3, 'a full batch is sent')
  await slow.recordMany(Array.from({ length: 5 }, () => newEvent({ metadata: { x: 'x'.repeat(150) } })))
  assert.equal((await slow.flush()).remaining, 0)
  for (const { events, text } of service.requests) assert.ok(events.length <= 3 && text.length - 12 - events.length <= 600, text)
  const aged = newClient(t, service, { maxAgeMs: 30 })
  await aged.record(newEvent())
  await until(() => aged.stats().accepted === 1, 'an old batch is sent')
})

/** survives sends events while the service answers as given, and then they are counted once and nothing is refused. */
async function survives (t, answers, options) {
  const service = await startService(t, (request, n) => typeof answers[n - 1] === 'function' ? answers[n - 1](request) : answers[n - 1])
  const client = newClient(t, service, options)
  const events = [newEvent(), newEvent(), newEvent(), newEvent()]
  await client.recordMany(events)
  assert.equal((await client.flush()).remaining, 0)
  assert.deepEqual([...service.counted.keys()], events.map((e) => e.eventId))
  const { accepted, duplicates, rejected, conflicts, damaged } = client.stats()
  assert.deepEqual([accepted + duplicates, rejected, conflicts, damaged], [4, 0, 0, 0])
  assert.deepEqual([files(client, 'rejected'), files(client, 'damaged')], [[], []])
  assert.ok(service.requests.length > answers.length)
  return service
}

const verdictsOf = (change) => ({ events }) => ({ status: 202, headers: jsonType, body: { events: change(events.map((e) => ({ eventId: e.eventId, status: 'accepted' }))) } })
for (const [name, answers] of Object.entries({
  'no answer': ['cut', 'cut'],
  'a proxy\'s page with 200': [page, page, page],
  '200 with JSON': [{ status: 200, headers: jsonType, body: {} }, { status: 200, headers: jsonType, body: [] }],
  'another status than 202 with verdicts': [(request) => ({ ...verdictsOf((list) => list)(request), status: 200 })],
  '202 without verdicts': [{ status: 202, headers: jsonType, body: {} }, { status: 202, headers: jsonType, body: 'null' }, { status: 202, headers: jsonType, body: '{"events":[{' }],
  'verdicts in another media type': [{ ...page, status: 202, body: '{}' }],
  'a redirect': [{ status: 302, headers: { location: '/elsewhere' }, body: '' }, { status: 308, headers: { location: '/elsewhere' }, body: '' }],
  'a proxy\'s 400, 404 and 413': [{ ...page, status: 400 }, { ...page, status: 404 }, { ...page, status: 413 }, { ...page, status: 400 }, { ...page, status: 400 }],
  '404 of the service': [problem(404, 'not_found'), problem(405, 'method_not_allowed'), problem(404, 'not_found'), problem(404, 'not_found'), problem(404, 'not_found')],
  '408, 429 and 5xx': [problem(408, 'request_timeout'), problem(429, 'rate_limited'), problem(503, 'overloaded'), { ...page, status: 502 }, problem(500, 'internal')],
  'a Retry-After that is no time': [problem(503, 'unavailable', { headers: { 'retry-after': 'soon' } }), problem(503, 'unavailable', { headers: { 'retry-after': '-5' } })]
})) test(`${name} is no success and loses nothing`, async (t) => { await survives(t, answers) })

for (const [name, change] of Object.entries({
  'too few verdicts': (list) => list.slice(1), 'verdicts in another order': (list) => list.reverse(), 'verdicts on other events': (list) => list.map((v) => ({ ...v, eventId: 'other' })), 'verdicts without a status': (list) => list.map(({ eventId }) => ({ eventId }))
})) {
  test(`${name} are no success`, async (t) => {
    const service = await startService(t, (request, n) => n === 1 ? verdictsOf(change)(request) : undefined)
    const client = newClient(t, service)
    const events = [newEvent(), newEvent(), newEvent()]
    await client.recordMany(events)
    await client.flush()
    assert.deepEqual([...service.counted.keys()], events.map((e) => e.eventId))
  })
}

test('a retry sends the same bytes, and after a while the header of replays', async (t) => {
  const replays = []
  const service = await startService(t, (request) => {
    if (request.headers['meterplex-replay'] === 'offline') replays.push(request)
    return replays.length === 3 ? undefined : problem(503, 'unavailable')
  })
  const client = newClient(t, service, { retryMs: 15 })
  await client.record(newEvent())
  await until(() => service.requests.length > 0)
  await client.record(newEvent())
  await until(() => client.stats().accepted === 2)
  const tries = service.requests.slice(0, -1)
  assert.deepEqual(tries.map((r) => r.bytes), tries.map(() => tries[0].bytes))
  assert.ok(tries.length > 3 && replays[0].at - tries[0].at >= 15)
  assert.equal(service.requests.at(-1).headers['meterplex-replay'], undefined)
  assert.deepEqual(client.seen.errors.map((e) => e.code), ['unavailable'], 'reported once')
})

test('Retry-After is the least wait, also while a caller flushes', async (t) => {
  const { retryAfterMs } = Answer.prototype
  t.mock.method(Answer.prototype, 'retryAfterMs', function () { return retryAfterMs.call(this) / 10 })
  const service = await startService(t, (_, n) => n === 1 ? problem(429, 'rate_limited', { headers: { 'retry-after': '1' } }) : undefined)
  const client = newClient(t, service)
  const sleep = t.mock.method(client.sender, 'sleep')
  await client.record(newEvent())
  await client.flush()
  assert.ok(service.requests[1].at - service.requests[0].at >= 90)
  assert.ok(sleep.mock.calls.some(({ arguments: [ms] }) => ms > 50 && ms <= 100), 'the random waits are shorter')
})

test('401 and 403 keep all events, are reported, and end with a new key', async (t) => {
  for (const [answer, code] of [[problem(401, 'unauthenticated'), 'unauthenticated'], [problem(403, 'tenant_suspended'), 'tenant_suspended'], [{ ...page, status: 403 }, 'forbidden']]) {
    const service = await startService(t, ({ headers }) => headers.authorization === `Bearer ${key}` ? answer : undefined)
    const client = newClient(t, service)
    await client.record(newEvent())
    await until(() => client.seen.errors.length > 0, code)
    assert.equal(client.seen.errors[0].code, code)
    assert.equal(client.stats().waiting, 1)
    assert.equal(service.requests.length, 1)
    client.setKey('mp_test_new')
    assert.equal((await client.flush()).remaining, 0)
    assert.ok(!inspect(client, { depth: 9 }).includes(key))
  }
})

test('a new key that arrives during an attempt is used at once', async (t) => {
  let rotate
  const service = await startService(t, async ({ headers }) => { await rotate?.(); return headers.authorization === `Bearer ${key}` ? problem(401, 'unauthenticated') : undefined })
  const client = newClient(t, service)
  rotate = () => client.setKey('mp_test_new')
  await client.record(newEvent())
  assert.equal((await client.flush()).remaining, 0)
})

test('401 is tried again after keyRetryMs', async (t) => {
  const service = await startService(t, (_, n) => n === 1 ? problem(401, 'unauthenticated') : undefined)
  const client = newClient(t, service, { keyRetryMs: 30 })
  await client.record(newEvent())
  assert.equal((await client.flush()).remaining, 0)
})

test('a batch that is refused whole is halved, and an event that is refused alone goes to damaged/', async (t) => {
  const events = Array.from({ length: 12 }, () => newEvent())
  const bad = events[5].eventId
  const service = await startService(t, (request) => request.events.some((e) => e.eventId === bad) ? problem(400, 'malformed_json', { body: { limit: '9007199254740993' } }) : undefined)
  const client = newClient(t, service)
  await client.recordMany(events)
  assert.equal((await client.flush()).remaining, 0)
  assert.deepEqual([...service.counted.keys()], events.map((e) => e.eventId).filter((id) => id !== bad), 'in order')
  assert.ok(service.requests.length <= 12, `${service.requests.length} requests`)
  const [name] = files(client, 'damaged')
  assert.match(name, /^event-[0-9a-f]{32}-[0-9a-f]{16}\.json$/)
  const saved = JSON.parse(readFileSync(join(client.options.dir, 'damaged', name), 'utf8'))
  assert.deepEqual([saved.event.eventId, saved.problem.code, Object.keys(saved)], [bad, 'malformed_json', ['event', 'problem', 'at']])
  assert.deepEqual(client.seen.errors.map(({ code, detail }) => [code, detail.includes(bad)]), [['damaged', true]])
  assert.equal(client.stats().damaged, 1)
  assert.equal(client.seen.verdicts.length, 11)
})

test('an event that no SDK writes does not stop the queue', async (t) => {
  const service = await startService(t, ({ events }) => events.some(Array.isArray) ? problem(400, 'event_invalid') : { status: 202, body: { events: events.map((e, index) => e.eventId ? { eventId: e.eventId, status: 'accepted' } : { index, status: 'rejected', code: 'member_missing' }) } })
  const client = newClient(t, service, { maxAgeMs: 3_600_000 })
  for (const text of ['{}', '[]', JSON.stringify({ eventId: 'e1' })]) await client.queue.append(text, Date.now(), '', Infinity)
  assert.equal((await client.flush()).remaining, 0)
  const { accepted, rejected, damaged } = client.stats()
  assert.deepEqual([accepted, rejected, damaged], [1, 1, 1])
  assert.deepEqual((await client.rejected()).map((r) => [r.event, r.code]), [[{}, 'member_missing']])
  assert.match(readFileSync(join(client.options.dir, 'damaged', files(client, 'damaged')[0]), 'utf8'), /^{"event":\[\],"problem":{.*"code":"event_invalid".*},"at":"[^"]*"}$/)
  await client.queue.damage('', 'no JSON', { problem: {}, at: 'now' })
  assert.ok(files(client, 'damaged').some((name) => readFileSync(join(client.options.dir, 'damaged', name), 'utf8') === '{"event":"no JSON","problem":{},"at":"now"}'))
})

test('rejected events in memory count for the size of the queue', async (t) => {
  const service = await startService(t, ({ events }) => ({ status: 202, body: { events: events.map((e) => ({ eventId: e.eventId, status: e.feature === 'unknown' ? 'rejected' : 'accepted' })) } }))
  const client = newClient(t, service, { memory: true, queueBytes: 250 })
  await client.record(newEvent({ eventId: 'r', feature: 'unknown', metadata: { text: 'é'.repeat(40) } }))
  const { waitingBytes } = client.stats()
  await client.flush()
  assert.equal(waitingBytes, 8 + Buffer.byteLength(service.requests[0].text) - '{"events":[]}'.length)
  await assert.rejects(client.record(newEvent(), { deadlineMs: 20 }), { code: 'queue_full' })
  await client.acknowledge('r')
  await client.record(newEvent())
})

test('events that are not counted are kept until they are acknowledged', async (t) => {
  for (const memory of [false, true]) {
    const service = await startService(t, ({ events }) => ({ status: 202, body: { events: events.map((e, i) => ({ eventId: e.eventId, ...[{ status: 'accepted' }, { status: 'duplicate' },
      { status: 'conflict', code: 'payload_conflict', reason: 'other payload' }, { status: 'rejected', code: 'feature_not_found', reason: 'no feature' }, { status: 'deferred', code: 'later_code' }][i] })) } }))
    const client = newClient(t, service, { memory, maxAgeMs: 3_600_000 })
    const events = Array.from({ length: 5 }, () => newEvent({ timestamp: '2026-11-29T10:00:00Z' }))
    await client.recordMany(events)
    await client.flush()
    const rejected = await client.rejected()
    assert.deepEqual(rejected.map((r) => [r.event.eventId, r.event.amount, r.status, r.code]).sort(), [[events[2].eventId, 1n, 'conflict', 'payload_conflict'],
      [events[3].eventId, 1n, 'rejected', 'feature_not_found'], [events[4].eventId, 1n, 'deferred', 'later_code']].sort())
    assert.match(rejected.find((r) => r.code === 'feature_not_found').remedy, /^Name a feature/)
    const { accepted, duplicates, conflicts, rejected: refused } = client.stats()
    assert.deepEqual([accepted, duplicates, conflicts, refused], [1, 1, 1, 2])
    if (!memory) {
      assert.equal(files(client, 'rejected').length, 3)
      for (const name of files(client, 'rejected')) assert.match(name, /^[0-9a-f]{32}-[0-9a-f]{16}\.json$/)
    }
    for (const event of events) await client.acknowledge(event.eventId)
    assert.deepEqual(await client.rejected(), [])
  }
})

test('an event that is recorded twice is refused twice, and kept once', async (t) => {
  const service = await startService(t, ({ events }) => ({ status: 202, body: { events: events.map((e) => ({ eventId: e.eventId, status: 'rejected', code: 'feature_not_found' })) } }))
  const client = newClient(t, service, { maxAgeMs: 3_600_000 })
  const event = newEvent({ timestamp: '2026-11-29T10:00:00Z' })
  await client.recordMany([event, event, newEvent()])
  assert.equal((await client.flush()).remaining, 0)
  assert.equal((await client.rejected()).length, 2)
})

test('a flush that has reached its deadline does not end twice', async (t) => {
  const service = await startService(t)
  const client = newClient(t, service, { maxAgeMs: 3_600_000, queueBytes: 100 })
  client.queue.maxBytes = 0 // the record waits for room
  const late = client.record(newEvent())
  await client.flush({ deadlineMs: 5 })
  client.queue.maxBytes = 1000
  client.queue.writer.wake()
  await late
  assert.equal((await client.flush()).remaining, 0)
})

test('a refused event is in rejected/ before the cursor moves', async (t) => {
  const service = await startService(t, ({ events }) => ({ status: 202, body: { events: events.map((e) => ({ eventId: e.eventId, status: 'rejected', code: 'feature_not_found' })) } }))
  const client = newClient(t, service)
  writeFileSync(join(client.options.dir, 'rejected'), 'in the way')
  await client.record(newEvent())
  await until(() => client.seen.errors.length > 0)
  assert.equal(client.stats().waiting, 1)
  const queue = readdirSync(client.options.dir).find((name) => name.startsWith('q-'))
  assert.ok(!existsSync(join(client.options.dir, queue, 'cursor')))
  assert.deepEqual(client.seen.verdicts, [])
  rmSync(join(client.options.dir, 'rejected'))
  assert.equal((await client.flush()).remaining, 0)
  assert.equal((await client.rejected()).length, 1)
})

test('the handler of verdicts is awaited, and its failure is reported', async (t) => {
  const service = await startService(t)
  let handled = 0
  const client = newClient(t, service, { onVerdict: async () => { await new Promise((resolve) => setTimeout(resolve, 10)); if (++handled === 2) throw new Error('no database') } })
  await client.recordMany([newEvent(), newEvent()])
  assert.equal((await client.flush()).remaining, 0)
  assert.equal(handled, 2)
  assert.deepEqual(client.seen.errors, [{ code: 'handler_failed', detail: 'onVerdict: no database' }])
})

test('without handlers, what is not counted and errors are logged without the key', async (t) => {
  const service = await startService(t, (request, n) => n === 1 ? problem(401, 'unauthenticated') : { status: 202, body: { events: request.events.map((e) => ({ eventId: e.eventId, status: 'rejected', code: 'feature_not_found', reason: 'no feature' })) } })
  const lines = []
  for (const name of ['warn', 'error']) t.mock.method(console, name, (...args) => { lines.push(args.join(' ')) })
  const client = newClient(t, service, { onVerdict: undefined, onError: undefined, keyRetryMs: 1 })
  const event = newEvent()
  await client.record(event)
  await client.flush()
  assert.match(lines[0], /^meterplex: unauthenticated: /)
  assert.match(lines[1], new RegExp(`^meterplex: the event ${event.eventId} is not counted: rejected: feature_not_found: no feature\\. Name a feature`))
  assert.ok(!lines.join().includes(key))
})

test('a handler may close the client: the events are sent again to the next one', async (t) => {
  const service = await startService(t)
  let closed
  const client = newClient(t, service, { onVerdict: async () => { closed = client.close({ deadlineMs: 20 }); await closed } })
  await client.record(newEvent())
  await until(() => closed)
  assert.equal((await closed).remaining, 1)
  const next = newClient(t, service, { dir: client.options.dir })
  await next.flush()
  assert.deepEqual(next.seen.verdicts.map((v) => v.status), ['duplicate'])
})

test('old events are warned of', async (t) => {
  const service = await startService(t, () => problem(503, 'unavailable'))
  const client = newClient(t, service)
  await client.record(newEvent({ timestamp: new Date(Date.now() - 6.1 * 24 * 3_600_000) }))
  await until(() => client.seen.errors.some((e) => e.code === 'too_old'))
  assert.ok(client.stats().oldestMs > 6 * 24 * 3_600_000)
})

test('recordMany stores all events or names the invalid one', async (t) => {
  const service = await startService(t)
  const client = newClient(t, service)
  await assert.rejects(client.recordMany([newEvent(), newEvent({ amount: 0 })]), (err) => err.code === 'amount_invalid' && err.errors[0].pointer === '/events/1/amount')
  assert.equal(client.stats().waiting, 0)
  const events = [newEvent(), newEvent()]
  assert.deepEqual((await client.recordMany(events)).map((e) => e.eventId), events.map((e) => e.eventId))
})

test('close sends what was recorded without await, and flush ends at its deadline or signal', async (t) => {
  let answer = () => new Promise(() => {})
  const service = await startService(t, (...args) => answer(...args))
  const client = newClient(t, service, { maxAgeMs: 3_600_000 })
  await client.record(newEvent())
  assert.equal((await client.flush({ deadlineMs: 50 })).remaining, 1)
  await assert.rejects(client.flush({ signal: AbortSignal.timeout(10) }), { name: 'TimeoutError' })
  answer = () => undefined
  service.server.closeAllConnections()
  client.record(newEvent())
  assert.equal((await client.shutdown()).remaining, 0)
  assert.equal(service.counted.size, 2)
})

test('invalid options are errors', async (t) => {
  const service = await startService(t)
  for (const options of [{ url: 'ftp://x' }, { url: 'http://user:pw@x' }, { key: 'a b' }, { key: '' }, { dir: undefined }, { memory: true, dir: 'x' }, { durability: 'none' }, { policy: 'maybe' }, { maxEvents: 1001 }, { maxAgeMs: 0 }, { checkMs: 1.5 }, { timeout: 5 }]) {
    assert.throws(() => newClient(t, service, options), (err) => err.code === 'invalid_argument' && !err.message.includes('pw'), JSON.stringify(options))
  }
})
