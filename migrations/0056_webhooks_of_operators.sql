-- +goose Up
-- Older instances go on beside it: they send webhooks of tenants to the networks of METERPLEX_WEBHOOK_ALLOW, too.

-- Whether an operator set the URL. Who set those of before is not known here: an operator who sets one again lets it reach the allowed networks.
ALTER TABLE webhooks ADD COLUMN operators boolean NOT NULL DEFAULT false;
