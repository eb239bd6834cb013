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

// factory is shared by the commands.
type factory struct {
	dial        func() (*nodeapi.Client, error)
	now         func() time.Time
	screen      func(io.Writer) screen
	local       *LocalCheck
	systemState func(context.Context) (string, error) // systemState, replaced in tests
}

// Options configures the commands.
type Options struct {
	// Dial is called when a command runs, after the flags have been parsed.
	Dial  func() (*nodeapi.Client, error)
	Check *LocalCheck // nil: check requires a running agent
}

// Commands returns the commands of the node. Print their errors with PrintError.
func Commands(o Options) []*cobra.Command {
	return commands(&factory{dial: o.Dial, now: time.Now, screen: screenOf, local: o.Check, systemState: systemState})
}

func commands(c *factory) []*cobra.Command {
	all := []*cobra.Command{
		c.ps(), c.describe(), c.logs(), c.exec(), c.why(), c.timeline(), c.probes(), c.plan(), c.check(), c.events(),
		c.version(),
		c.top(), c.attach(), c.portForward(), c.cp(),
		c.get(), c.scale(), c.rollout(), c.services(), c.dns(),
		c.debug(), c.restart(), c.evict(), c.images(), c.drain(),
	}
	for _, cmd := range all {
		cmd.SilenceUsage, cmd.SilenceErrors = true, true
	}
	return all
}

// ExitError sets the exit code of the program.
type ExitError struct {
	Code int
	Err  error // nil: nothing is left to print
}

func (e *ExitError) Error() string {
	if e.Err == nil {
		return fmt.Sprintf("exit code %d", e.Code)
	}
	return e.Err.Error()
}

func (e *ExitError) Unwrap() error { return e.Err }

// PrintError prints err to w like kubectl and returns the exit code: 0 for nil, 130 for a canceled
// command, for which nothing is printed.
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

// screen describes the output device.
type screen struct {
	width int
	color bool
}

// plainWidth is the width if the output is not a terminal.
const plainWidth = 120

func screenOf(w io.Writer) screen {
	f, ok := w.(*os.File)
	if !ok || !term.IsTerminal(int(f.Fd())) {
		return screen{width: plainWidth}
	}
	s := screen{width: plainWidth, color: os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb"}
	if width, _, err := term.GetSize(int(f.Fd())); err == nil && width > 0 {
		s.width = width
	}
	return s
}

// ANSI colors by meaning.
const (
	colorOK      = "\x1b[32m"
	colorError   = "\x1b[31m"
	colorWarning = "\x1b[33m"
)

func (s screen) paint(color, text string) string {
	if !s.color || color == "" || text == "" {
		return text
	}
	return color + text + "\x1b[0m"
}
