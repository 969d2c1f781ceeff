-- +goose Up
-- Older instances go on beside it: they refuse a key from the time of revoked_at on, by their own clocks, and so do the new ones for keys that older ones ended.

-- The key was revoked, or rotated without an overlap: it is refused at once, whatever the clock of an instance shows.
ALTER TABLE api_keys ADD COLUMN ended boolean NOT NULL DEFAULT false;
