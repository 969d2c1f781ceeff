-- +goose Up
-- Older instances go on beside it: they send a push with its first idempotency key, as before.

-- After a refusal an attempt has another idempotency key: the provider repeats a refusal for the key that it had.
ALTER TABLE pushes ADD COLUMN renewals int NOT NULL DEFAULT 0;
