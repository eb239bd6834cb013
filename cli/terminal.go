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

// terminal is the terminal that a command was typed on.
type terminal struct{ fd int }

// terminalOf returns the terminal behind in, nil if that is none.
func terminalOf(in io.Reader) *terminal {
	f, ok := in.(*os.File)
	if !ok || !term.IsTerminal(int(f.Fd())) {
		return nil
	}
	return &terminal{fd: int(f.Fd())}
}

// raw runs do with the terminal in raw mode: each key goes through as it is. do
// gets the terminal's size, first as it is and then with each change. Whatever
// do does, the terminal is afterwards as it was before.
func (t *terminal) raw(ctx context.Context, do func(context.Context, remotecommand.TerminalSizeQueue) error) (err error) {
	was, err := term.MakeRaw(t.fd)
	if err != nil {
		return fmt.Errorf("set the terminal: %w", err)
	}
	defer func() {
		if e := term.Restore(t.fd, was); e != nil {
			err = errors.Join(err, fmt.Errorf("give the terminal back: %w", e))
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

// watch sends the size at the beginning and after each change.
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

// sizeQueue is what remotecommand reads sizes from.
type sizeQueue struct {
	ctx   context.Context
	sizes chan remotecommand.TerminalSize
}

// Next waits for the next size; nil when there will be no more.
func (q *sizeQueue) Next() *remotecommand.TerminalSize {
	select {
	case s := <-q.sizes:
		return &s
	case <-q.ctx.Done():
		return nil
	}
}
