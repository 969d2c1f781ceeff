import meterplex from './index.cjs'

export const { Meterplex, MeterplexError, amount, eventId, countRequests, countFetch, withTokens } = meterplex
