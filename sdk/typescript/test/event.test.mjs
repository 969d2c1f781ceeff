import test from 'node:test'
import assert from 'node:assert/strict'
import { createRequire } from 'node:module'
import { readFileSync } from 'node:fs'
import { amount, eventId } from '../index.mjs'

const require = createRequire(import.meta.url)
const { prepare, readEvent } = require('../src/event.cjs')
const web = require('../src/web.cjs')
const vectors = JSON.parse(readFileSync(new URL('../../testdata/vectors.json', import.meta.url), 'utf8'))

test('event ids are those of the vectors', () => {
  for (const v of vectors.eventIds) assert.equal(eventId(v.tenant, v.feature, v.resource, v.occurredAt), v.id)
  for (const v of vectors.eventIdsRefused) assert.throws(() => eventId(v.tenant, v.feature, v.resource, v.occurredAt), { code: 'invalid_argument' })
  assert.equal(eventId('t1', 'api_calls', 'req-1', new Date('2026-11-29T10:00:00Z')), vectors.eventIds[0].id)
})

test('events are written as the vectors', () => {
  for (const v of vectors.canonical) assert.equal(prepare(v.event).text, v.canonical)
  for (const v of vectors.refused) assert.throws(() => prepare(v.event), { code: v.code }, JSON.stringify(v))
  assert.ok(vectors.canonical.length >= 10 && vectors.refused.length >= 18)
})

test('amounts are exact', () => {
  for (const v of vectors.amounts) assert.equal(amount(v.decimal, 'GB', v.scale), BigInt(v.amount))
  for (const v of vectors.amountsRefused) assert.throws(() => amount(v.decimal, 'GB', v.scale), (err) => err.code === 'amount_invalid' && /GB/.test(err.detail), JSON.stringify(v))
})

const event = { eventId: 'e1', feature: 'api_calls', amount: 1, timestamp: '2026-11-29T10:00:00Z' }
const metadata = (value) => () => prepare({ ...event, metadata: { value } })

test('an event without id and time gets both', () => {
  const before = Date.now()
  const { eventId: id, timestamp } = prepare({ feature: 'api_calls', amount: 9007199254740991n })
  assert.match(id, /^[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$/)
  assert.ok(parseInt(id.slice(0, 8) + id.slice(9, 13), 16) >= before && Date.parse(timestamp) >= before)
})

test('what JSON does not keep is refused', () => {
  for (const value of [NaN, Infinity, 2n ** 53n + 1n, 10n ** 400n, '\ud800', '\0', new Date(), new Map(), () => 1, Symbol('x'), [undefined]]) assert.throws(metadata(value), { code: 'metadata_invalid' })
  const deep = { a: {} }
  deep.a.a = deep
  assert.throws(metadata(deep), { code: 'metadata_invalid' })
  assert.throws(() => prepare({ ...event, metadata: [] }), { code: 'metadata_invalid' })
  assert.equal(prepare({ ...event, metadata: { b: undefined, a: 2n ** 53n, z: -0, u: Object.create(null) } }).text.match(/"metadata":(.*),"timestamp/)[1], '{"a":9007199254740992,"u":{},"z":0}')
})

test('the first fault names its member', () => {
  for (const [change, code, pointer] of [
    [{ amonut: 1, feature: 'X' }, 'unknown_member', '/amonut'], [{ amount: '5' }, 'amount_invalid', '/amount'], [{ amount: 2 ** 53 }, 'amount_invalid', '/amount'], [{ amount: 2n ** 53n }, 'amount_invalid', '/amount'],
    [{ feature: undefined }, 'member_missing', '/feature'], [{ amount: undefined }, 'member_missing', '/amount'], [{ timestamp: new Date(NaN) }, 'timestamp_invalid', '/timestamp'],
    [{ type: 'correction', correctionRef: 'e1' }, 'correction_ref_invalid', '/correctionRef'], [{ eventId: '' }, 'event_id_invalid', '/eventId']
  ]) assert.throws(() => prepare({ ...event, ...change }), (err) => err.code === code && err.errors[0].pointer === pointer && err.remedy !== '', code)
})

test('an event of another writer keeps its id', () => {
  assert.deepEqual(readEvent('{"amount":"x","eventId":"e1"}'), { amount: 'x', eventId: 'e1' })
  for (const text of ['no JSON', '{}', 'null', '5', '{"eventId":5}']) assert.equal(readEvent(text).eventId, '', text)
  assert.equal(amount('0.001', 'ETH', 18), 10n ** 15n)
})

test('times are read as the service reads them', () => {
  const time = (timestamp) => prepare({ ...event, timestamp }).timestamp
  assert.equal(time('0001-01-01T00:00:00Z'), '0001-01-01T00:00:00Z')
  assert.equal(time('2024-02-29T23:30:00.000001-00:31'), '2024-03-01T00:01:00.000001Z')
  for (const bad of ['2026-11-29t10:00:00Z', '2026-11-29T10:00:60Z', '2026-11-29T24:00:00Z', '2025-02-29T10:00:00Z', '2026-00-10T10:00:00Z', '2026-01-00T10:00:00Z', '2026-11-29T10:00:00+24:00',
    '2026-11-29T10:00:00.1234567891Z', '2026-11-29T10:00:00.Z', '0001-01-01T00:00:00+00:01', '9999-12-31T23:59:59-00:01', '2026-11-29T10:00:00', '2026-11-29', 5]) assert.throws(() => time(bad), { code: 'timestamp_invalid' }, String(bad))
})

test('the web has the same SHA-256', () => {
  const { sha256 } = require('../src/node.cjs')
  for (const n of [0, 1, 55, 56, 63, 64, 65, 119, 120, 200]) assert.equal(web.sha256('é'.repeat(n)), sha256('é'.repeat(n)))
})
