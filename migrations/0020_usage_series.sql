-- +goose Up
-- Older instances go on beside it: they neither read nor write the new tables, and a feature that they change keeps
-- its keys.
--
-- The metadata keys by which the usage of a feature is grouped, and since when: the keys of a usage event are those
-- of the latest row up to the time at which it was recorded.
ALTER TABLE features ADD COLUMN group_by text[] NOT NULL DEFAULT '{}';
CREATE TABLE feature_groupings (
  feature text COLLATE "C" NOT NULL,
  since   timestamptz NOT NULL,
  keys    text[] NOT NULL,
  PRIMARY KEY (feature, since)
);
GRANT SELECT, INSERT, UPDATE ON feature_groupings TO meterplex_worker;
GRANT SELECT ON feature_groupings TO meterplex_tenant;
