package main

import "github.com/meterplex/meterplex/cmd/planted/overlay"

// clientBugs are in the command line, which has to keep the service's promises.
func clientBugs() []bug {
	return []bug{
		{
			name: "client-new-event-id", what: "a retry sends the event under a new eventId",
			promise: "P2: each event counts once, whatever is retried",
			edits: []overlay.Edit{edit("cmd/meterplex/cli/usage_send.go", `	s.batch.Add(event)
	return s.flush()
}

// lines sends`, `	s.batch.Add(event)
	patience := s.client.RetryFor
	s.client.RetryFor = 0
	err = s.flush()
	s.client.RetryFor = patience
	if err == nil {
		return nil
	}
	if event, err = c.event(client.NewEventID(), s.app.now()); err != nil {
		return err
	}
	s.batch = client.Batch{}
	s.batch.Add(event)
	return s.flush()
}

// lines sends`)},
			pkg: "./cmd/meterplex/cli", run: "TestClientSendsTheSameEventAgain",
			says: `events are known, want one`,
		},
		{
			name: "client-new-idempotency-key", what: "a retry of a creation has a new Idempotency-Key",
			promise: "a creation takes effect once",
			edits: []overlay.Edit{edit("cmd/meterplex/client/client.go", `	return c.retrying(ctx, func() (json.RawMessage, error) { return c.once(ctx, r) })`, `	return c.retrying(ctx, func() (json.RawMessage, error) {
		if r.Header.Get("Idempotency-Key") != "" {
			r.Header.Set("Idempotency-Key", rand.Text())
		}
		return c.once(ctx, r)
	})`)},
			pkg: "./cmd/meterplex/cli", run: "TestClientPostsUnderOneIdempotencyKey",
			says: `^exit code \d+, keys \[`,
		},
		{
			name: "import-anchor-late", what: "an import stores its time anchor after its first events",
			promise: "P2: a repeated import counts once",
			edits: []overlay.Edit{
				edit("cmd/meterplex/importer/state.go", `		err := createState(path, fresh)
		if err == nil {`, `		err := os.MkdirAll(filepath.Dir(path), 0o700)
		if err == nil {`),
			},
			pkg: "./cmd/meterplex/cli", run: "TestImportStoresTheAnchorBeforeTheFirstEvent",
			says: `^at request \d+ the state is`,
		},
	}
}
