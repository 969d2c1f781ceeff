package server

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/meterplex/meterplex/infra/postgres"
)

// endAppend is the name of COMMIT in its prepared form.
const endAppend = "end_append"

// finish copies the rows into the log, runs the moves, that of the heads first, and commits, in one round
// trip, since the heads are locked until it ends. Statements after a failed one are not
// executed. It has its own deadline: a context that ends while COMMIT is in flight would
// leave the outcome unknown. After a failure the connection is still in its transaction.
func finish(ctx context.Context, conn *pgx.Conn, rows *Rows, moves []Move) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), postgres.CommitTimeout)
	defer cancel()
	moves = append(moves, Move{endAppend, Statement{SQL: "commit"}})
	binds := make([]pgproto3.Bind, len(moves))
	for i := range moves {
		var err error
		if binds[i], err = bindOf(ctx, conn, &moves[i]); err != nil {
			return err
		}
	}
	server := conn.PgConn()
	// The deadline of the socket stands in for the context's.
	deadline, _ := ctx.Deadline()
	if err := server.Conn().SetDeadline(deadline); err != nil {
		return fmt.Errorf("bounding the time of a commit: %w", err)
	}
	err := send(server.Frontend(), rows, binds)
	if err == nil {
		err = outcome(server, rows.Len())
	}
	// The next user of the connection sets a deadline of its own. If the socket is
	// closed, that user gets an error.
	_ = server.Conn().SetDeadline(time.Time{})
	return postgres.ClassifyCommit(err)
}

// bindOf prepares a statement once on a connection, and encodes its parameters.
func bindOf(ctx context.Context, conn *pgx.Conn, m *Move) (pgproto3.Bind, error) {
	prepared, err := conn.Prepare(ctx, m.Name, m.SQL)
	if err != nil {
		return pgproto3.Bind{}, fmt.Errorf("preparing %s: %w", m.Name, err)
	}
	var args pgx.ExtendedQueryBuilder
	if err := args.Build(conn.TypeMap(), prepared, m.Args); err != nil {
		return pgproto3.Bind{}, fmt.Errorf("encoding the parameters of %s: %w", m.Name, err)
	}
	return pgproto3.Bind{PreparedStatement: m.Name, ParameterFormatCodes: args.ParamFormats, Parameters: args.ParamValues}, nil
}

// send writes the statements of finish: the COPY with its data, then the rest, which
// the server reads after the COPY.
func send(to *pgproto3.Frontend, rows *Rows, rest []pgproto3.Bind) error {
	to.SendQuery(&pgproto3.Query{String: CopySQL})
	if err := sendRows(to, rows); err != nil {
		return err
	}
	to.Send(&pgproto3.CopyDone{})
	for i := range rest {
		to.SendBind(&rest[i])
		to.SendExecute(&pgproto3.Execute{})
	}
	to.SendSync(&pgproto3.Sync{})
	return to.Flush()
}

// sendRows buffers a few rows together with the other messages, and sends many rows
// unbuffered, which saves a copy.
func sendRows(to *pgproto3.Frontend, rows *Rows) error {
	piece := rows.next()
	if rows.done {
		to.Send(&pgproto3.CopyData{Data: piece[copyHeader:]})
		return nil
	}
	if err := to.Flush(); err != nil {
		return err
	}
	for ; ; piece = rows.next() {
		piece[0] = 'd'
		binary.BigEndian.PutUint32(piece[1:], uint32(len(piece)-1))
		if err := to.SendUnbufferedEncodedCopyData(piece); err != nil || rows.done {
			return err
		}
	}
}

// outcome reads the server's answers to the COPY and to the rest.
func outcome(server *pgconn.PgConn, rows int) error {
	var failed error
	var tag string
	for answered := 0; answered < 2; {
		message, err := server.ReceiveMessage(context.Background()) // the deadline is the socket's
		if err != nil {
			return errors.Join(failed, err)
		}
		switch m := message.(type) {
		case *pgproto3.ErrorResponse:
			if failed == nil {
				failed = fmt.Errorf("appending %d events: %w", rows, pgconn.ErrorResponseToPgError(m))
			}
		case *pgproto3.NoticeResponse:
			if m.SeverityUnlocalized == "WARNING" && failed == nil {
				failed = fmt.Errorf("WARNING: %s", m.Message) // see postgres.Commit
			}
		case *pgproto3.CommandComplete:
			tag = string(m.CommandTag)
			if strings.HasPrefix(tag, "COPY ") && tag != fmt.Sprint("COPY ", rows) {
				return fmt.Errorf("%s for %d events", tag, rows)
			}
		case *pgproto3.ReadyForQuery:
			answered++
		}
	}
	if failed == nil && tag != "COMMIT" {
		return fmt.Errorf("the transaction was rolled back by the server (%s)", tag)
	}
	return failed
}
