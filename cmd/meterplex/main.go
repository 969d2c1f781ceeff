// Command meterplex is the service and its client: one binary.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/cmd/meterplex/cli"
)

// commit is set by the linker (see the Makefile) if the toolchain does not
// record it.
var commit string

func main() {
	uuid.EnableRandPool() // for ids, not secrets: without the pool each id costs a system call
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	// The first signal restores the default handling: a second one kills the process at once.
	context.AfterFunc(ctx, stop)
	os.Exit(cli.Run(ctx, commit, os.Args[1:]))
}
