-- +goose Up
-- Older instances go on beside it: it adds a policy for a role that they do not work as.
--
-- consumer_standing runs as its owner and reads which generation readers see. Row level
-- security is forced there, so that it found none where its owner does not inherit from
-- meterplex_worker: a login with NOINHERIT, or one that was granted the role WITH INHERIT
-- FALSE (PostgreSQL 16), or that only migrates.
-- +goose StatementBegin
DO $$ BEGIN
  EXECUTE format('CREATE POLICY owner_reads ON projection_pointers FOR SELECT TO %I USING (true)',
    (SELECT pg_get_userbyid(proowner) FROM pg_proc WHERE oid = 'consumer_standing'::regproc));
END $$;
-- +goose StatementEnd
