package main

import "github.com/meterplex/meterplex/cmd/planted/overlay"

// loginBugs are in the rights to set the roles of the service, which PostgreSQL 16 changed.
func loginBugs() []bug {
	const logins, safety = "infra/postgres/logins.go", "infra/postgres/safety.go"
	return []bug{
		{
			name: "grant-without-set", what: "membership of a role counts as the right to set it",
			promise: "the service works on every PostgreSQL from 15 on",
			edits:   []overlay.Edit{edit(logins, `'MEMBER' ELSE 'SET' END) ORDER BY 1)`+"`", `'MEMBER' ELSE 'MEMBER' END) ORDER BY 1)`+"`")},
			pkg:     "./infra/postgres", run: "TestPostgres18/it_creates_the_roles",
			says: `permission denied to set role "meterplex_worker"`,
		},
		{
			name: "advice-without-set", what: "the printed statement leaves the SET option unchanged",
			promise: "an error says what to do",
			edits:   []overlay.Edit{edit(logins, `grant += " WITH SET TRUE"`, `grant += ""`)},
			pkg:     "./infra/postgres", run: "TestPostgres18/to_INHERIT_and_not_to_SET",
			says: `may not SET ROLE`,
		},
		{
			name: "owner-that-inherits-nothing", what: "the owner of the tables sees the pointers only by inheritance",
			promise: "the service works on every PostgreSQL from 15 on",
			edits:   []overlay.Edit{edit("migrations/0015_owner_reads.sql", `FOR SELECT TO %I USING (true)`, `FOR SELECT TO %I USING (false)`)},
			pkg:     "./infra/postgres", run: "TestPostgres18/to_SET_and_not_to_INHERIT",
			says: `head 0, generation <nil>`,
		},
		{
			name: "unsafe-by-admin-option", what: "a role that may grant itself another one counts as unable to become it",
			promise: "P6: the service cannot alter the log",
			edits:   []overlay.Edit{edit(safety, `SELECT by, roleid, admin OR sets AND becomes FROM reached JOIN members ON member = oid WHERE admin OR`, `SELECT by, roleid, sets AND becomes FROM reached JOIN members ON member = oid WHERE`)},
			pkg:     "./infra/postgres", run: "TestPostgres18/memberships",
			says: `^w in b WITH ADMIN true, INHERIT .* becomes o true, found false`,
		},
	}
}
