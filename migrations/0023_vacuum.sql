-- +goose Up
-- Older instances go on beside it: it sets how often the log is vacuumed.
--
-- New rows of the log are frozen while their pages are still in memory, in steps that do not grow with the table: a
-- row never changes, so there is nothing to wait for. Otherwise the vacuum against wraparound writes the whole
-- table once more, years later (docs/decisions/0009).
ALTER TABLE event_log_rows SET (
  autovacuum_vacuum_insert_scale_factor = 0, autovacuum_vacuum_insert_threshold = 200000,
  autovacuum_freeze_min_age = 0,
  autovacuum_analyze_scale_factor = 0, autovacuum_analyze_threshold = 1000000);
