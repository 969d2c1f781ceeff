package postgres

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
)

// Statements that finish keeps prepared.
const (
	moveHeads = "move_heads"
	endAppend = "end_append"
)

// finish copies the rows into the log, moves the heads and commits, in one round
// trip: the heads are held for all of its time. What follows a statement that
// fails is not executed. It has its own time: a context that ends while COMMIT is on
// its way would leave the outcome open. A connection on which it failed is left in
// its transaction.
func finish(ctx context.Context, conn *pgx.Conn, rows []row, hs heads) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), commitTimeout)
	defer cancel()
	move, err := conn.Prepare(ctx, moveHeads, updateHeadsSQL)
	if err != nil {
		return fmt.Errorf("preparing to move heads: %w", err)
	}
	if _, err := conn.Prepare(ctx, endAppend, "commit"); err != nil {
		return fmt.Errorf("preparing to commit: %w", err)
	}
	var args pgx.ExtendedQueryBuilder
	if err := args.Build(conn.TypeMap(), move, hs.updateArgs()); err != nil {
		return fmt.Errorf("encoding heads: %w", err)
	}
	server := conn.PgConn()
	// The deadline of the socket stands in for the context's.
	deadline, _ := ctx.Deadline()
	if err := server.Conn().SetDeadline(deadline); err != nil {
		return fmt.Errorf("bounding the time of a commit: %w", err)
	}
	err = send(server.Frontend(), rows, &args)
	if err == nil {
		err = outcome(server, len(rows))
	}
	// Who has the connection next has a time of his own. Where the socket is gone he
	// finds that out by himself.
	_ = server.Conn().SetDeadline(time.Time{})
	return classifyCommit(err)
}

// send writes what finish asks for: the COPY with its data, then the rest, which
// the server reads when the COPY is over.
func send(to *pgproto3.Frontend, rows []row, args *pgx.ExtendedQueryBuilder) error {
	to.SendQuery(&pgproto3.Query{String: copyRows})
	if err := sendRows(to, newRowSource(rows)); err != nil {
		return err
	}
	to.Send(&pgproto3.CopyDone{})
	to.SendBind(&pgproto3.Bind{PreparedStatement: moveHeads, ParameterFormatCodes: args.ParamFormats, Parameters: args.ParamValues})
	to.SendExecute(&pgproto3.Execute{})
	to.SendBind(&pgproto3.Bind{PreparedStatement: endAppend})
	to.SendExecute(&pgproto3.Execute{})
	to.SendSync(&pgproto3.Sync{})
	return to.Flush()
}

// sendRows sends a few rows together with what is around them, and many by
// themselves, so that they are not copied another time.
func sendRows(to *pgproto3.Frontend, rows *rowSource) error {
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

// outcome reads what the server says to the COPY, and to the rest.
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
				failed = fmt.Errorf("WARNING: %s", m.Message) // see committing
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
