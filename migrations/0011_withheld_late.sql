-- +goose Up
-- Late is what was withheld when its consumer had read it from the log already: it
-- is folded, so that it is not parked, has no dead letter and is in every rebuild.
-- Only who reads the topic from outside gets the stand-in.
ALTER TABLE withheld_records ADD COLUMN late boolean NOT NULL DEFAULT false;
ALTER TABLE withheld_records ALTER COLUMN dead_letter_id DROP NOT NULL;
ALTER TABLE withheld_records ADD CONSTRAINT withheld_late CHECK (late = (dead_letter_id IS NULL));
