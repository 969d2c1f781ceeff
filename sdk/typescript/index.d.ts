/** An amount: a bigint, or an integer that a number holds exactly (at most 2^53-1). Answers have bigints. */
export type Amount = bigint | number

/** What every waiting function takes. */
export interface Waiting {
  /** Ends the wait: the promise is rejected with its reason, or with `unknown_outcome` if a request that changes something is under way. */
  signal?: AbortSignal
  /** The longest wait in milliseconds. */
  deadlineMs?: number
}

/** What happened. `code` is stable: branch on it, never on texts. */
export class MeterplexError extends Error {
  constructor (code: string, detail: string, more?: object)
  /**
   * A code of the service (docs/reference/errors.md), or of the SDK: `closed`, `invalid_argument`, `queue_full` (no space until the deadline), `queue_failed` (the
   * disk does not take the event), `unavailable` (no answer to a read), `unknown_outcome` (a request may have been executed: repeat it with `id`).
   */
  readonly code: string
  /** The status of the service's answer; 0 without one. */
  readonly status: number
  /** What failed, with the value. */
  readonly detail: string
  /** What to do; "" for a code that this version does not know. */
  readonly remedy: string
  /** The trace of the request, for the operator of the service; "" without one. */
  readonly traceId: string
  /** The members at fault. */
  readonly errors: Array<{ pointer?: string, code?: string, detail?: string }>
  /** Of `unknown_outcome`: the eventId or reservationId to ask again with. */
  readonly id?: string
  /** The whole problem of the service, e.g. with `remaining`, `limit`, `used`, `held`, `resetAt` of `quota_exceeded` as bigints. */
  readonly problem?: Record<string, any>
}

/** Usage, a correction of it, or a retraction. */
export interface UsageEvent {
  /** The id of the use, unique in the tenant: the same id is counted once. 1 to 255 printable ASCII characters without space; a random UUIDv7 if absent. */
  eventId?: string
  /** The key of the feature. */
  feature: string
  /** From 1 to 2^53-1; of a correction the new amount, 0 or more; absent in a retraction. */
  amount?: Amount
  /** When it was used: a Date, or a text of RFC 3339 with an offset, kept to microseconds. Now if absent. */
  timestamp?: Date | string
  /** At most 4 KiB as JSON and 5 levels deep. A number that JSON does not keep exactly is refused. */
  metadata?: Record<string, unknown>
  /** `usage` if absent. */
  type?: 'usage' | 'correction' | 'retraction'
  /** The eventId of the corrected usage. */
  correctionRef?: string
}

/** An event of the queue, as it is sent. */
export interface QueuedEvent extends UsageEvent {
  eventId: string
  timestamp: string
  amount?: bigint
}

/** The service's decision on an event. */
export interface Verdict {
  eventId: string
  /** `accepted`, `duplicate` (counted before: both are done), `conflict`, `rejected`, or one that a later service adds. */
  status: string
  /** Why it is not counted. */
  code?: string
  reason?: string
  /** What to do about it. */
  remedy: string
  /** Where the log of the service has it: reads with `minPosition` wait for it. */
  position?: string
  /** The member at fault, and the place in the batch of an event without an id: the SDK's have one. */
  pointer?: string
  index?: number
  [member: string]: any
}

/** An event that the service did not count. */
export interface Rejection {
  event: QueuedEvent
  status: string
  code: string
  reason: string
  remedy: string
  at: string
}

export interface Recorded { eventId: string, timestamp: string }

/** Events that are not sent yet, and the age of the oldest. */
export interface Remaining { remaining: number, oldestMs: number }

export interface Stats {
  waiting: number
  waitingBytes: number
  oldestMs: number
  accepted: number
  duplicates: number
  conflicts: number
  rejected: number
  damaged: number
  lastError: { code: string, detail: string } | null
}

export interface Options {
  /** The address of the service, e.g. https://meterplex.example. */
  url: string
  /** A key of the tenant: `usage:write` to record, `usage:read`, `entitlements:read` and `entitlements:reserve` for the rest. It is never logged. */
  key: string
  /** The directory of the queue, one for each tenant. Several processes may share it. Required unless `memory` is true. */
  dir?: string
  /** Keep events in memory only: those that are not sent are lost with the process. Rejected ones count for queueBytes until they are acknowledged. For runtimes without files. */
  memory?: boolean
  /** Names the owner of the queue: a client takes over no queue that names another tenant. */
  tenant?: string
  /** `fsync`: a recorded event survives the end of the machine. `os`: only that of the process. Default `fsync`. */
  durability?: 'fsync' | 'os'
  /** A batch is sent when it has so many events (1000), so many bytes (1 MiB), or when its oldest event has this age (1000 ms). */
  maxEvents?: number
  maxBytes?: number
  maxAgeMs?: number
  /** The bytes of events that may wait (1 GiB); after them `record` waits, and fails with `queue_full` at its deadline. */
  queueBytes?: number
  /** What `check` answers if neither the service nor the cache can. Default `deny`. */
  policy?: 'allow' | 'deny'
  /** The time limit of `check` (500 ms), and how old an answer of its cache may be (60,000 ms). */
  checkMs?: number
  maxStaleMs?: number
  /** The deadline of waiting functions (10,000 ms) and of reads (30,000 ms) that name none. */
  deadlineMs?: number
  readMs?: number
  /** The time limit of one attempt of a request (30,000 ms). */
  timeoutMs?: number
  /** The longest random wait between attempts, and the time after which batches are marked as replays and `unavailable` is reported (60,000 ms). */
  retryMs?: number
  /** The wait after a key was refused (60,000 ms). */
  keyRetryMs?: number
  /** `too_old` is reported if an event that waits is older (6 days: the service refuses those older than 7). */
  warnAgeMs?: number
  /** Certificates to trust instead of the system's, in PEM. Node only. */
  ca?: string | Uint8Array | Array<string | Uint8Array>
  /** Called at least once for each final verdict; the queue moves on after its promise, so it must not wait for `flush`. The default logs events that are not counted. */
  onVerdict?: (event: QueuedEvent, verdict: Verdict) => unknown
  /**
   * Called for errors of the sender, which goes on: `unauthenticated`, `forbidden` and the like (the key is refused, all events wait), `unavailable`, `too_old`,
   * `damaged` (bytes or an event that cannot be sent, now in damaged/), `queue_failed`, `handler_failed`, `usage_missing`. The default logs them.
   */
  onError?: (error: { code: string, detail: string }) => void
}

/** How a read waits for usage that was just recorded. */
export interface Fresh extends Waiting {
  /** A position of a verdict or an answer: the read includes it, or fails with `projection_behind`. */
  minPosition?: string
  /** How many seconds the service waits for it, at most 30. Default: it does not wait. */
  wait?: number
}

/** A list. Its pages are read while it is iterated. */
export interface Rows<T, Page = {}> extends AsyncIterable<T> {
  /** The members of the last page that was read, except its rows. */
  readonly page?: Page & { nextCursor: string | null }
  /** Reads all pages. */
  toArray (): Promise<T[]>
}

/** The limit of a feature, as it is. Amounts are absent for BOOLEAN features; null: no limit, or no account. */
export interface Entitlement {
  allowed: boolean
  feature: string
  type?: string
  /** Why it is not allowed. */
  reason?: string
  limit?: bigint | null
  used?: bigint | null
  held?: bigint | null
  remaining?: bigint | null
  limitBehavior?: string
  resetAt?: string | null
  asOfPosition?: string
  [member: string]: any
}

export interface Checked extends Entitlement {
  /** `cache`: the last answer, less what was checked since. `policy`: neither the service nor the cache could answer. */
  source: 'service' | 'cache' | 'policy'
}

/** The account after a change. null: no limit, or no account (METERED features). */
interface Account {
  feature: string
  amount: bigint
  periodKey: string
  limit: bigint | null
  used: bigint | null
  held: bigint | null
  remaining: bigint | null
  resetAt: string | null
  position: string
  [member: string]: any
}
export interface Consumed extends Account { allowed: boolean, eventId: string }
export interface Reserved extends Account { reservationId: string, state: string, expiresAt: string, released?: bigint }
export interface Committed extends Account { reservationId: string, state: string, eventId: string, released: bigint }

export interface Reservation {
  reservationId: string
  feature: string
  amount: bigint
  state: string
  periodKey: string
  expiresAt: string
  endedAt: string | null
  eventId: string | null
  committed: bigint | null
  resetAt: string | null
  position: string
  endPosition: string | null
  [member: string]: any
}

/** A billing figure. */
export interface Aggregate {
  tenantId: string
  feature: string
  periodKey: string
  subscriptionId: string
  amount: bigint
  eventCount: number
  periodStart: string | null
  periodEnd: string | null
  lastEventAt: string
  [member: string]: any
}

/** The usage of an hour, a day or a month. */
export interface Bucket { start: string, end: string, amount: bigint, eventCount: number, group?: Record<string, string | null>, [member: string]: any }

export interface ListedEvent {
  eventId: string
  feature: string
  amount: bigint
  timestamp: string
  type?: string
  correctionRef?: string
  status: string
  code?: string
  reason?: string
  position: string
  recordedAt: string
  [member: string]: any
}

/** What became of an event. docs/reference/http-api.md describes the other members. */
export interface Receipt {
  eventId: string
  tenantId: string
  status: string
  payload?: any
  payloadHash: string
  canonicalVersion: number
  recorded: { at: string, position: string, logEventId: string, correlationId: string | null }
  published: { at: string | null, topic: string, partition: number, offset: number | null, expired?: boolean } | null
  validated: { at: string, position: string, subscriptionId: string, featureType: string, periodKey: string, amount: bigint } | null
  rejected: { at: string, position: string, code: string, reason: string, attempt?: number, deadLetterId?: string } | null
  aggregated: { feature: string, periodKey: string, subscriptionId: string, noLaterThan: string } | null
  conflicts: Array<{ at: string, eventId: string, position: string, firstPosition: string, firstHash: string, conflictHash: string }>
  retries: Array<{ at: string, attempt: number, deadLetterId: string, position: string }>
  deadLetters: Array<{ id: string, at: string, stage: string, status: string, code: string, reason: string }>
  corrections: Array<{ eventId: string, kind: string, position: string, verdictPosition?: string, before?: bigint, after?: bigint, delta?: bigint, status: string, at?: string }>
  corrects: { eventId: string, kind: string, position?: string, before?: bigint, after?: bigint } | null
  effectiveAmount: bigint | null
  adjustments: Array<{ id: string, kind: string, state: string, amount: bigint }>
  late: { kind: string, snapshot?: number } | null
  frozen: { periodKey: string, snapshot: number } | null
  asOfPosition: string
  [member: string]: any
}

/** Paging of lists. The SDK chooses `cursor`, `format` and `amounts` of the API itself; `includeTest` and `tenantId` are for the keys of operators. */
interface Paged extends Fresh {
  /** Rows of one page, 1 to 1000; default 100. */
  limit?: number
}

/**
 * The client of one tenant. It sends in the background from a queue on disk, and keeps no process alive. Make one for the life of the process.
 *
 *     const meterplex = new Meterplex({ url, key, dir: '/var/lib/app/meterplex' })
 *     await meterplex.record({ feature: 'api_calls', amount: 1 })
 */
export class Meterplex {
  /** Reads no environment, makes no request. @throws MeterplexError `invalid_argument` */
  constructor (options: Options)

  /**
   * Returns once the event is durable in the queue, which sends it. Its verdict goes to `onVerdict`. Repeat a failed call with the same eventId.
   * @throws MeterplexError `amount_invalid` and the like (nothing is stored), `queue_full`, `queue_failed`, `unknown_outcome`, `closed`
   */
  record (event: UsageEvent, options?: Waiting): Promise<Recorded>
  /** Records several events with one wait for the disk. An invalid one is an error with its pointer (`/events/3/amount`), and none is stored. */
  recordMany (events: UsageEvent[], options?: Waiting): Promise<Recorded[]>
  /** Sends what waits now, also events whose `record` has only begun. At its deadline it returns what remains. */
  flush (options?: Waiting): Promise<Remaining>
  /** Flushes, then ends. What remains is sent by the next client of the directory. */
  close (options?: { deadlineMs?: number }): Promise<Remaining>
  /** The same as `close`. */
  shutdown (options?: { deadlineMs?: number }): Promise<Remaining>
  /** `await using meterplex = new Meterplex(…)` closes it. */
  [Symbol.asyncDispose] (): PromiseLike<void>

  /** Figures of the queue, and of the verdicts since the client was made. */
  stats (): Stats
  /** The events of the directory that the service did not count. */
  rejected (): Promise<Rejection[]>
  /** Removes an event from those. */
  acknowledge (eventId: string): Promise<void>
  /** Uses a new key, e.g. after a rotation. What waited for it is sent at once. */
  setKey (key: string): void

  /**
   * May the tenant use an amount (default 1)? A hint: only `consume` and `reserve` decide. Without an answer in time: the last answer of the feature if it is fresh and
   * its rest holds the amount, less what was checked since; else the policy.
   */
  check (feature: string, amount?: Amount, options?: Fresh & { policy?: 'allow' | 'deny' }): Promise<Checked>
  /** Uses an amount if the limit allows it, in one step. @throws MeterplexError `quota_exceeded` (nothing is recorded), `unknown_outcome` */
  consume (feature: string, amount: Amount, options?: Waiting & { eventId?: string, metadata?: Record<string, unknown> }): Promise<Consumed>
  /** Holds an amount for `ttlSeconds` (60) if the limit allows it. @throws MeterplexError `quota_exceeded`, `reservation_ended`, `unknown_outcome` */
  reserve (feature: string, amount: Amount, options?: Waiting & { reservationId?: string, ttlSeconds?: number }): Promise<Reserved>
  /**
   * Records the amount that was used, and releases the rest. `overage: 'record'` records more than the hold. `eventId` is `<reservationId>-usage` if absent;
   * for a reservationId above 249 characters `<first 32 hex digits of its SHA-256>-usage`.
   */
  commit (feature: string, reservationId: string, amount: Amount, options?: Waiting & { eventId?: string, overage?: 'deny' | 'record' }): Promise<Committed>
  /** Holds for so many seconds from now, or as long as before if that is longer. */
  extend (feature: string, reservationId: string, ttlSeconds: number, options?: Waiting): Promise<Reserved>
  /** Ends a hold without usage. */
  release (feature: string, reservationId: string, options?: Waiting): Promise<Reserved>
  /**
   * Holds an amount (for 600 s, extended while `fn` runs), calls `fn`, and commits the amount that it returns, even above the hold; 0 releases the hold.
   * If `fn` fails, the hold is released, and its error is thrown.
   *
   *     const { value } = await meterplex.withReservation('tokens', 4000, async () => {
   *       const answer = await model.create(request)
   *       return { amount: answer.usage.total_tokens, value: answer }
   *     })
   */
  withReservation<T = undefined> (feature: string, amount: Amount, fn: (hold: Reserved) => Amount | { amount: Amount, value?: T } | Promise<Amount | { amount: Amount, value?: T }>,
    options?: Waiting & { reservationId?: string, eventId?: string, ttlSeconds?: number }): Promise<{ settled: Committed | Reserved, value: T }>

  /** Billing figures, of all features and periods or of one. `asOfPosition` and `asOf` read the figures of a moment of the past. */
  aggregates (options?: Paged & { feature?: string, period?: string, asOfPosition?: string, asOf?: Date | string }): Rows<Aggregate, { asOfPosition: string | null }>
  /** The usage of a feature by hour, day or month. `groupBy`: `metadata.<key>`, at most two. */
  usage (options: Paged & { feature: string, from: Date | string, to: Date | string, granularity?: 'hour' | 'day' | 'month', groupBy?: string | string[] }): Rows<Bucket, { asOfPosition: string | null, completeUpTo: string | null }>
  /** Usage events, the newest first. */
  events (options?: Paged & { feature?: string, status?: string, from?: Date | string, to?: Date | string }): Rows<ListedEvent>
  /** What became of an event. @throws MeterplexError `not_found` */
  receipt (eventId: string, options?: Fresh): Promise<Receipt>
  /** The limits of all features of the subscription. */
  entitlements (options?: Paged): Rows<Entitlement, { asOfPosition: string }>
  /** The reservations of a feature; ended ones for 7 days. */
  reservations (feature: string, options?: Waiting & { limit?: number, state?: string }): Rows<Reservation>
}

/**
 * The same id for the same use, whoever computes it: the first 32 hex digits of SHA-256 of the four parts.
 * @throws MeterplexError `invalid_argument` if a part is empty or contains "|"
 */
export function eventId (tenant: string, feature: string, resource: string, occurredAt: Date | string): string

/**
 * decimal × 10^scale, exactly: `amount('1.5', 'GB', 3)` is 1500n.
 * @throws MeterplexError `amount_invalid` if it has more decimals, is not positive, or is above 2^53-1
 */
export function amount (decimal: string, unit: string, scale: number): bigint

/** How a middleware counts. Its functions may return promises. A fault goes to `onError`; the application's answer is sent in any case. */
export interface CountOptions<Request, Response> {
  feature: string
  /** Default: 1. */
  amount?: (request: Request, response: Response) => Amount | Promise<Amount>
  metadata?: (request: Request, response: Response) => Record<string, unknown> | undefined | Promise<Record<string, unknown> | undefined>
  /** E.g. the id of the request, so that a repeated request counts once. Default: random. */
  eventId?: (request: Request, response: Response) => string | undefined | Promise<string | undefined>
  /** Whether to count a request. Default: unless its status is 500 or more. */
  count?: (request: Request, response: Response) => boolean | Promise<boolean>
}

/** Middleware `(req, res, next)` of Express, Connect and node:http: records each request once, when its answer is sent or its client has left. */
export function countRequests<Req = any, Res extends { once (event: 'finish' | 'close', listener: () => void): unknown } = any> (
  client: Meterplex, options: CountOptions<Req, Res>): (request: Req, response: Res, next?: (err?: any) => void) => void

/** Wraps a handler of fetch, `(request) => response`: records each request before its response is returned. */
export function countFetch<Req, Res extends { status: number }, More extends any[]> (client: Meterplex, options: CountOptions<Req, Res>, handler: (request: Req, ...more: More) => Res | Promise<Res>): (request: Req, ...more: More) => Promise<Res>

/**
 * Wraps a call of a model: records the input and output tokens that its answer reports (`usage` of OpenAI and Anthropic, also at the end of a stream), as two features. A fault goes
 * to `onError`; the caller keeps the answer. Event ids follow from the id of the answer.
 *
 *     const create = withTokens(meterplex, { input: 'input_tokens', output: 'output_tokens' }, (request) => openai.chat.completions.create(request))
 */
export function withTokens<Args extends any[], Answer> (client: Meterplex, options: { input?: string, output?: string, metadata?: (...args: Args) => Record<string, unknown> | undefined }, call: (...args: Args) => Answer): (...args: Args) => Promise<Awaited<Answer>>
