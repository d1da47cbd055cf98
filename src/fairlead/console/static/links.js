// Addresses within the page.

/** The address of a destination, whatever its name is made of. */
export const toDestination = (name, ...more) => `#/destinations/${[name, ...more].map(encodeURIComponent).join("/")}`;
