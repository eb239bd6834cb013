// Command lint checks the language of this repository where general linters have no rules for it:
//
//	lint strings DIR   the strings of logs, errors, command help and flags in Go files,
//	                   and the comments of scripts, makefiles, units and YAML files
//	lint commits DIR   the subjects of the commits since this check was added
//
// The banned words are the tokens of styles/Berth/Dialect.yml, which Vale applies to Markdown and to
// comments. Each finding is one line, FILE:LINE: text. The exit status is 1 if there are findings.
package main
