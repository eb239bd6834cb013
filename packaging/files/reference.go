package files

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"
)

// Reference returns the hidden command that prints a Markdown page of docs/reference: every command of the
// program, or of one of its groups, with its usage and its own flags.
func Reference() *cobra.Command {
	return &cobra.Command{
		Use: "reference [GROUP]", Hidden: true, Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return reference(cmd.Root(), strings.Join(args, ""), cmd.OutOrStdout())
		},
	}
}

func reference(root *cobra.Command, group string, w io.Writer) error {
	title := "Commands of " + root.Name()
	if group != "" {
		i := slices.IndexFunc(root.Groups(), func(g *cobra.Group) bool { return g.ID == group })
		if i < 0 {
			return fmt.Errorf("unknown group %q", group)
		}
		title += ": " + strings.ToLower(strings.TrimSuffix(root.Groups()[i].Title, ":"))
	}
	var out strings.Builder
	fmt.Fprintf(&out, "<!-- Generated from the commands of cmd/%s by \"make generate\". Do not edit. -->\n\n",
		root.Name())
	fmt.Fprintf(&out, "# %s\n\n%s.\n", title, strings.TrimSuffix(root.Short, "."))
	if flags := root.PersistentFlags().FlagUsages(); flags != "" {
		fmt.Fprintf(&out, "\nFlags of all commands:\n\n```\n%s```\n", flags)
	}
	for _, c := range root.Commands() {
		if group == "" || c.GroupID == group {
			describe(c, &out)
		}
	}
	_, err := io.WriteString(w, out.String())
	return err
}

// describe writes a section for a command, if it is visible, and for each one below it.
func describe(c *cobra.Command, out *strings.Builder) {
	if !c.IsAvailableCommand() || c.Name() == "help" || c.Name() == "completion" {
		return
	}
	fmt.Fprintf(out, "\n## %s\n\n%s.\n", c.CommandPath(), strings.TrimSuffix(c.Short, "."))
	if c.Runnable() {
		fmt.Fprintf(out, "\n```\n%s\n", c.UseLine())
		if flags := c.LocalNonPersistentFlags().FlagUsages(); flags != "" {
			fmt.Fprintf(out, "\n%s", flags)
		}
		fmt.Fprint(out, "```\n")
	}
	for _, sub := range c.Commands() {
		describe(sub, out)
	}
}
