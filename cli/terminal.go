package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"sync"

	"golang.org/x/sys/unix"
	"golang.org/x/term"
	"k8s.io/client-go/tools/remotecommand"
)

// terminal is the terminal of the user.
type terminal struct{ fd int }

// terminalOf returns the terminal of in, or nil if in is not a terminal.
func terminalOf(in io.Reader) *terminal {
	f, ok := in.(*os.File)
	if !ok || !term.IsTerminal(int(f.Fd())) {
		return nil
	}
	return &terminal{fd: int(f.Fd())}
}

// raw calls do with the terminal in raw mode. do receives the initial size of the terminal and each
// change. The terminal is always restored.
func (t *terminal) raw(
	ctx context.Context,
	do func(context.Context, remotecommand.TerminalSizeQueue) error,
) (err error) {
	oldState, err := term.MakeRaw(t.fd)
	if err != nil {
		return fmt.Errorf("set terminal to raw mode: %w", err)
	}
	defer func() {
		if e := term.Restore(t.fd, oldState); e != nil {
			err = errors.Join(err, fmt.Errorf("restore terminal: %w", e))
		}
	}()
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	sizes := &sizeQueue{ctx: ctx, sizes: make(chan remotecommand.TerminalSize, 1)}
	changes := make(chan os.Signal, 1)
	signal.Notify(changes, unix.SIGWINCH)
	defer signal.Stop(changes)
	wg.Go(func() { t.watch(ctx, changes, sizes.sizes) })
	return do(ctx, sizes)
}

// watch sends the initial size and each change.
func (t *terminal) watch(ctx context.Context, changes <-chan os.Signal, sizes chan<- remotecommand.TerminalSize) {
	for {
		if width, height, err := term.GetSize(t.fd); err == nil {
			select {
			case sizes <- remotecommand.TerminalSize{Width: uint16(width), Height: uint16(height)}:
			case <-ctx.Done():
				return
			}
		}
		select {
		case <-changes:
		case <-ctx.Done():
			return
		}
	}
}

// sizeQueue implements remotecommand.TerminalSizeQueue.
type sizeQueue struct {
	ctx   context.Context
	sizes chan remotecommand.TerminalSize
}

// Next waits for the next size. It returns nil at the end.
func (q *sizeQueue) Next() *remotecommand.TerminalSize {
	select {
	case s := <-q.sizes:
		return &s
	case <-q.ctx.Done():
		return nil
	}
}
