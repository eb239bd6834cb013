package files

import (
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"
)

// Reference returns the hidden command that prints the Markdown page docs/reference/NAME.md: every
// command of the program with its usage and its own flags.
func Reference() *cobra.Command {
	return &cobra.Command{
		Use: "reference", Hidden: true, Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return reference(cmd.Root(), cmd.OutOrStdout()) },
	}
}

func reference(root *cobra.Command, w io.Writer) error {
	var out strings.Builder
	fmt.Fprintf(&out, "<!-- Generated from the commands of cmd/%s by \"make generate\". Do not edit. -->\n\n",
		root.Name())
	fmt.Fprintf(&out, "# Commands of %s\n\n%s.\n", root.Name(), strings.TrimSuffix(root.Short, "."))
	if flags := root.PersistentFlags().FlagUsages(); flags != "" {
		fmt.Fprintf(&out, "\nFlags of all commands:\n\n```\n%s```\n", flags)
	}
	describe(root, &out)
	_, err := io.WriteString(w, out.String())
	return err
}

// describe writes a section for each visible command below a command.
func describe(parent *cobra.Command, out *strings.Builder) {
	for _, c := range parent.Commands() {
		if !c.IsAvailableCommand() || c.Name() == "help" || c.Name() == "completion" {
			continue
		}
		fmt.Fprintf(out, "\n## %s\n\n%s.\n", c.CommandPath(), strings.TrimSuffix(c.Short, "."))
		if c.Runnable() {
			fmt.Fprintf(out, "\n```\n%s\n", c.UseLine())
			if flags := c.LocalNonPersistentFlags().FlagUsages(); flags != "" {
				fmt.Fprintf(out, "\n%s", flags)
			}
			fmt.Fprint(out, "```\n")
		}
		describe(c, out)
	}
}
