-- +goose Up
-- Older instances go on beside it: they send webhooks of tenants to the networks of METERPLEX_WEBHOOK_ALLOW, too.

-- The URL that an operator set. It is compared with url: an older instance that changes url for a tenant leaves it as it is. Who set those of before
-- is not known here (NULL): an operator who sets one again lets it reach the allowed networks.
ALTER TABLE webhooks ADD COLUMN operators_url text;
