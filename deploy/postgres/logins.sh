#!/usr/bin/env bash
# Creates the two logins of the service and its database (docs/how-to/database-logins.md, "Two logins"), once, when the data directory is new.
set -euo pipefail
psql --set ON_ERROR_STOP=1 --username "$POSTGRES_USER" --dbname postgres \
  --set owner_password="$METERPLEX_OWNER_PASSWORD" --set password="$METERPLEX_PASSWORD" <<'SQL'
CREATE ROLE meterplex_owner LOGIN PASSWORD :'owner_password' CREATEROLE;
CREATE ROLE meterplex LOGIN PASSWORD :'password';
CREATE DATABASE meterplex OWNER meterplex_owner;
SQL
