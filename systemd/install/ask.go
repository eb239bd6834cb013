package install

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"strings"
)

// PrintSteps tells what would be done, a line per step.
func PrintSteps(out io.Writer, steps []Step) error {
	for _, s := range steps {
		if _, err := fmt.Fprintln(out, s); err != nil {
			return err
		}
	}
	return nil
}

// Confirm tells what would be done and asks. Anything but a yes is an error.
func Confirm(in io.Reader, out io.Writer, steps []Step) error {
	if err := PrintSteps(out, steps); err != nil {
		return err
	}
	if _, err := fmt.Fprint(out, "Do all that? [y/N] "); err != nil {
		return err
	}
	answer, err := bufio.NewReader(in).ReadString('\n')
	if err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	if answer = strings.ToLower(strings.TrimSpace(answer)); answer != "y" && answer != "yes" {
		return errors.New("nothing was done; --yes does it without asking")
	}
	return nil
}
