-- +goose Up
-- Stop all instances first. It changes no table: the records of events that are recorded from now on have a traceparent, which
-- their vocabulary says. Older instances cannot read that vocabulary.
INSERT INTO required_migrations VALUES (43, 'they cannot read the vocabulary of events whose records have a traceparent');
