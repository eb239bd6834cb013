package cli

import (
	"fmt"
	"io"
	"strings"

	"berth/nodeapi"

	"github.com/spf13/cobra"
)

func (c *factory) images() *cobra.Command {
	var format string
	cmd := &cobra.Command{
		Use:   "images",
		Short: "List the images on this node, and why they stay",
		Long: `List the images on this node. PINNED says why an image stays when no pod uses it:
for an archive in the folder of images, by the runtime, as the image of sandboxes,
or because this node has not pulled it and might not get it again. The others go
when the disk fills up or nobody has used them for long.

Below are the archives of that folder that are not imported yet or cannot be.`,
		Example: `  berth images
  berth images -o json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := checkFormat(format, "json", "yaml"); err != nil {
				return err
			}
			client, err := c.dial()
			if err != nil {
				return err
			}
			defer client.Close()
			list, err := client.Images(cmd.Context())
			switch {
			case err != nil:
				return err
			case format != "":
				return encode(cmd.OutOrStdout(), format, list)
			}
			return writeImages(cmd.OutOrStdout(), c.screen(cmd.OutOrStdout()), list)
		},
	}
	cmd.Flags().StringVarP(&format, "output", "o", "", "json or yaml")
	fixed(cmd, "output", "json", "yaml")
	return cmd
}

func writeImages(w io.Writer, s screen, list nodeapi.Images) error {
	rows := [][]string{{"IMAGE", "TAG", "IMAGE ID", "SIZE", "IN USE", "PINNED"}}
	for _, img := range list.Images {
		used := "no"
		if img.InUse {
			used = "yes"
		}
		for _, name := range tagsOf(img.Names) {
			rows = append(rows, []string{name[0], name[1], shortID(img.ID), decimal(img.Size), used, orNone(img.Pinned)})
		}
	}
	t := table{w: w}
	if err := t.print(rows...); err != nil {
		return err
	}
	for _, a := range list.Archives {
		colour, text := mild, a.Path+": "+a.State
		switch a.State {
		case "imported":
			continue
		case "broken":
			colour = bad
		}
		if a.Message != "" {
			text += ": " + a.Message
		}
		if _, err := fmt.Fprintln(w, s.paint(colour, clean(text))); err != nil {
			return err
		}
	}
	return nil
}

// tagsOf are the lines of one image: repository and tag, as crictl has them. One
// that is known by its digests alone has a line without a tag.
func tagsOf(names []string) (out [][2]string) {
	repository := none
	for _, n := range names {
		if before, _, pinned := strings.Cut(n, "@"); pinned {
			repository = before
		} else if at := strings.LastIndex(n, ":"); at > strings.LastIndex(n, "/") {
			out = append(out, [2]string{n[:at], n[at+1:]})
		}
	}
	if len(out) == 0 {
		out = append(out, [2]string{repository, none})
	}
	return out
}

// shortID is an image ID as crictl shows it: 13 digits.
func shortID(id string) string {
	id = id[strings.Index(id, ":")+1:]
	return id[:min(len(id), 13)]
}

// decimal is a size in units of a thousand, as crictl shows it.
func decimal(n uint64) string {
	v, unit := float64(n), 0
	units := [...]string{"B", "kB", "MB", "GB", "TB"}
	for ; v >= 1000 && unit < len(units)-1; unit++ {
		v /= 1000
	}
	return fmt.Sprintf("%.3g%s", v, units[unit])
}
