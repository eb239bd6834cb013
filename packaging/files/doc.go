// Package files writes what a package has beside a program and what only the program itself knows: its manual pages,
// its completion for shells and the configuration of a fresh host. It is linked only with the build tag "packaging", in
// programs that are run once and not shipped.
package files
