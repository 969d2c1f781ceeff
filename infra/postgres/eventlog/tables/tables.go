// Package tables keeps the tables that change with the events of an append, in the transaction that writes them:
// accounts, reservations, corrections and adjustments. Accounts and reservations are read under the locks of the heads.
package tables

import "github.com/meterplex/meterplex/infra/postgres/eventlog/server"

// Changes returns the statements that change the tables which the events of rows change.
func Changes(rows []server.Row) (list []server.Move) {
	for _, c := range []struct {
		name string
		of   func([]server.Row) (server.Statement, bool)
	}{
		{"move_accounts", accountChanges}, {"move_reservations", reservationChanges}, {"insert_corrections", correctionChanges},
		{"add_adjustments", adjustmentsAdded}, {"set_adjustments", adjustmentsDecided},
	} {
		if change, ok := c.of(rows); ok {
			list = append(list, server.Move{Name: c.name, Statement: change})
		}
	}
	return list
}
