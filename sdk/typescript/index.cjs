'use strict'
const { Meterplex } = require('./src/client.cjs')
const { MeterplexError } = require('./src/errors.cjs')
const { amount, eventId } = require('./src/event.cjs')
const { countRequests, countFetch } = require('./src/middleware.cjs')
const { withTokens } = require('./src/llm.cjs')

module.exports = { Meterplex, MeterplexError, amount, eventId, countRequests, countFetch, withTokens }
