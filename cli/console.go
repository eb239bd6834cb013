package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"berth/nodeapi"

	"github.com/spf13/cobra"
	"golang.org/x/term"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// factory is what the commands share.
type factory struct {
	dial   func() (*nodeapi.Client, error)
	now    func() time.Time
	screen func(io.Writer) screen
	local  *LocalCheck
	system func(context.Context) (string, error) // see systemState
}

// Options are what the commands need of the program.
type Options struct {
	// Dial is called when a command runs, after the flags have been parsed.
	Dial  func() (*nodeapi.Client, error)
	Check *LocalCheck // nil: check needs a running agent
}

// Commands returns the operator's commands. Their errors are to be shown with
// Report.
func Commands(o Options) []*cobra.Command {
	return commands(&factory{dial: o.Dial, now: time.Now, screen: screenOf, local: o.Check, system: systemState})
}

func commands(c *factory) []*cobra.Command {
	all := []*cobra.Command{
		c.ps(), c.describe(), c.logs(), c.exec(), c.why(), c.timeline(), c.probes(), c.plan(), c.check(), c.events(), c.version(),
		c.top(), c.attach(), c.portForward(), c.cp(),
		c.debug(), c.restart(), c.evict(), c.images(), c.drain(),
	}
	for _, cmd := range all {
		cmd.SilenceUsage, cmd.SilenceErrors = true, true
	}
	return all
}

// ExitError ends the program with a code of its own.
type ExitError struct {
	Code int
	Err  error // nil: everything has been said
}

func (e *ExitError) Error() string {
	if e.Err == nil {
		return fmt.Sprintf("exit code %d", e.Code)
	}
	return e.Err.Error()
}

func (e *ExitError) Unwrap() error { return e.Err }

// PrintError shows err on w as kubectl would and returns the exit code for it: 0
// for nil, 130 for a command that was called off (about which nothing is said).
func PrintError(w io.Writer, err error) int {
	exit, own := errors.AsType[*ExitError](err)
	status, fromAgent := errors.AsType[*apierrors.StatusError](err)
	switch {
	case err == nil:
		return 0
	case errors.Is(err, context.Canceled):
		return 130
	case own && exit.Err == nil:
		return exit.Code
	case own:
		_, _ = fmt.Fprintln(w, clean(exit.Err.Error()))
		return exit.Code
	case fromAgent:
		_, _ = fmt.Fprintf(w, "Error from agent (%s): %s\n", status.ErrStatus.Reason, clean(err.Error()))
		if d := status.ErrStatus.Details; d != nil {
			for _, cause := range d.Causes {
				_, _ = fmt.Fprintln(w, "  "+clean(cause.Message))
			}
		}
	default:
		_, _ = fmt.Fprintf(w, "error: %s\n", clean(err.Error()))
	}
	return 1
}

// screen is what output can be laid out for.
type screen struct {
	width  int
	colour bool
}

// plainWidth is assumed where output goes to no terminal.
const plainWidth = 120

func screenOf(w io.Writer) screen {
	f, ok := w.(*os.File)
	if !ok || !term.IsTerminal(int(f.Fd())) {
		return screen{width: plainWidth}
	}
	s := screen{width: plainWidth, colour: os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb"}
	if width, _, err := term.GetSize(int(f.Fd())); err == nil && width > 0 {
		s.width = width
	}
	return s
}

// The few colours there are, by meaning.
const (
	good = "\x1b[32m"
	bad  = "\x1b[31m"
	mild = "\x1b[33m"
)

func (s screen) paint(colour, text string) string {
	if !s.colour || colour == "" || text == "" {
		return text
	}
	return colour + text + "\x1b[0m"
}
